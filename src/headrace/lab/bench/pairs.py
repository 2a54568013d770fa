"""Two settings of one engine in turns, A B B A ..., so that a machine that is busy is busy for both.

The figure is the ratio within a round, never one of two runs that lie apart. Both engines live in one process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from headrace.api.llm import LLM
from headrace.config import EngineConfig

from .engine_runs import without_store
from .progress import now
from .stats import Spread, spread

ENOUGH = 5
Measure = Callable[[LLM, int], float]
"""(engine, round) to a rate; the round makes prompts differ, so that nothing is found in the prefix cache."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Rates of both, and B's rate over A's of each round."""

    first: Spread
    second: Spread
    ratio: Spread

    @property
    def verdict(self) -> str:
        """In words. A difference is claimed only where enough rounds agree: of five that lie on either side by chance,
        all agree once in sixteen times."""
        if self.ratio.low <= 1.0 <= self.ratio.high:
            return "no difference: rounds lie on both sides of 1"
        if self.ratio.runs < ENOUGH:
            return f"too few rounds to tell (at least {ENOUGH})"
        return "more" if self.ratio.median > 1 else "less"


def halved(config: EngineConfig) -> EngineConfig:
    """Leaves room for a second engine when the pool is sized by the free memory."""
    if config.cache.kv_memory is not None:
        return config
    return replace(config, cache=replace(config.cache, kv_memory_fraction=config.cache.kv_memory_fraction / 2))


class Pairs:
    """Opens both engines; use in a ``with``."""

    def __init__(self, first: EngineConfig, second: EngineConfig) -> None:
        self._stack = ExitStack()
        self._configs = halved(without_store(first)), halved(without_store(second))

    def __enter__(self) -> Pairs:
        now(f"loading {self._configs[0].model.model}, twice")
        with ExitStack() as stack:
            self.first, self.second = (stack.enter_context(LLM(config=config)) for config in self._configs)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def measure(self, measure: Measure, rounds: int) -> Pair:
        """One round that is not counted, then ``rounds`` of both, the order turned about each time."""
        pairs: list[Sequence[float]] = []
        for number in range(-1, rounds):
            turns = [self.first, self.second] if number % 2 else [self.second, self.first]
            rates = {id(llm): measure(llm, number) for llm in turns}
            pairs.append((rates[id(self.first)], rates[id(self.second)]))
        first, second = zip(*pairs[1:])
        return Pair(spread(first), spread(second), spread([b / a for a, b in pairs[1:]]))

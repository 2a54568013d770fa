"""Random mixtures of everything an engine can be told to do at once, as plain data, and how they are run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from drafters import Prophet
from grammars import ANYTHING, END, chains
from harness import Outcome, make_engine, outcome_of, request

from headrace._core import StepCost
from headrace.contract.plan import Role, StepKind
from headrace.contract.request import Request
from headrace.contract.result import TokenDelta
from headrace.engine.drafting import CostWatch, Drafting
from headrace.engine.engine import Engine
from headrace.engine.hand_over import Giver, Taker
from headrace.engine.local_hand_off import LocalHandOff
from headrace.engine.phase_voted import OneKind, PhaseVoted
from headrace.models.context import Model
from headrace.speculation.drafter import Drafter
from headrace.speculation.guard import Guard
from headrace.speculation.ngram import NgramDrafter
from headrace.speculation.suffix import SuffixDrafter

DISCIPLINES = ("mixed", "voted", "split")
DRAFTERS = ("none", "ngram", "suffix", "prophet")
WISHES: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 1.0, "seed": 11},
    {"temperature": 0.7, "top_k": 7, "top_p": 0.9, "seed": 12, "presence_penalty": 0.4},
    {"repetition_penalty": 1.3, "min_tokens": 3},
    {"stop_token_ids": [4, 9, 17, 33], "logit_bias": {4: 2.0}},
    {"structured_outputs": ANYTHING, "temperature": 0.8, "seed": 13},
    {"prompt_logprobs": 1},
)


@dataclass(frozen=True)
class Ask:
    """One prompt: when it comes and is aborted (turns; None: never), what is wished, how many choices."""

    prompt: tuple[int, ...]
    wish: int
    max_tokens: int
    choices: int
    arrival: int
    abort: int | None

    def requests(self) -> list[Request]:
        """Choices of their own seeds; all but the first share the first one's prompt."""
        wish, made = WISHES[self.wish], []
        for k in range(self.choices):
            seed = wish.get("seed", 1) + 1000 * k
            wishes = wish | {"seed": seed, "max_tokens": max(self.max_tokens, wish.get("min_tokens", 1))}
            made.append(request(self.prompt, eos_ids=(END,), **wishes))
        return [made[0], *(msgspec.structs.replace(each, shares=made[0].request_id) for each in made[1:])]


@dataclass(frozen=True)
class Setting:
    """What the engine is told. ``priced``: the planner and the guard decide about drafts, by a made-up cost."""

    discipline: str
    overlap: bool
    drafter: str
    max_drafts: int
    priced: bool
    token_budget: int
    max_seqs: int
    pressed: bool


class Mixed:
    """The engines of a setting behind one ``turn``; ``known``: texts for the prophet."""

    def __init__(self, model: Model, setting: Setting, known: Sequence[Sequence[int]]) -> None:
        self._setting, self._model, self._known = setting, model, known
        self.port = LocalHandOff(capacity=2)
        build = {"mixed": self._mixed, "voted": self._voted, "split": self._split}[setting.discipline]
        self.engines: list[Engine] = build()

    def _engine(self, **more: Any) -> Engine:
        s, groups = self._setting, len(self._model.kv_layout.groups)
        limits: dict[str, Any] = {"max_model_len": 40, "token_budget": s.token_budget, "max_seqs": s.max_seqs}
        if s.pressed and s.discipline != "split":  # a completion engine cannot recompute: it would end requests
            limits |= {"num_blocks": 11 * groups + 1, "full_sequence_must_fit": False}
        drafter = _drafter(s.drafter, self._known)
        settings = {"drafter": drafter, "max_drafts": s.max_drafts, "overlap": s.overlap, "grammars": chains()}
        engine: Engine = make_engine(self._model, **settings | limits | more)
        if drafter is not None and s.priced:
            engine._drafting = _priced(s.max_drafts, engine)
        return engine

    def _mixed(self) -> list[Engine]:
        return [self._engine()]

    def _voted(self) -> list[Engine]:
        engine = self._engine(role=int(Role.NORMAL))
        engine._cadence = PhaseVoted(all_interval=2, any_interval=3)
        return [engine]

    def _split(self) -> list[Engine]:
        prompt = self._engine(role=int(Role.PROMPT), overlap=False)
        completion = self._engine(role=int(Role.COMPLETION), stop_preempted=True, num_blocks=400)
        prompt._cadence, prompt._relay = OneKind(StepKind.PREFILL), Giver(self.port, prompt.worker)
        completion._cadence, completion._relay = OneKind(StepKind.DECODE), Taker(self.port, completion.worker)
        return [prompt, completion]

    def submit(self, item: Request) -> None:
        self.engines[0].submit(item)

    def abort(self, name: str) -> None:
        """As the client of a pair does it."""
        self.port.end(name, "abort")
        for engine in self.engines:
            engine.abort(name)

    def turn(self) -> Iterable[TokenDelta]:
        for engine in self.engines:
            if engine.resting and not engine.quiet:
                engine.rest(0.001)  # a grammar is being compiled, or blocks are being copied
            yield from engine.tick()

    @property
    def over(self) -> bool:
        return all(engine.quiet for engine in self.engines) and self.port.num_waiting == 0


def _drafter(name: str, known: Sequence[Sequence[int]]) -> Drafter | None:
    made: dict[str, Drafter | None] = {
        "none": None,
        "ngram": NgramDrafter(1, 3),
        "suffix": SuffixDrafter(1, memory=200),
        "prophet": Prophet(known, 0.2),
    }
    return made[name]


def _priced(most: int, engine: Engine) -> Drafting:
    """Rows that cost more in stairs, so that some drafts are worth it and some are not."""
    speculator = engine.worker._speculator  # type: ignore[attr-defined]

    def publish(cost: StepCost) -> None:
        speculator.cost = cost

    def pause(paused: bool) -> None:
        speculator.paused = paused

    return Drafting(most, CostWatch([2, 4, 8, 64], [1.0, 1.2, 2.0, 6.0], publish), Guard(), pause)


def play(model: Model, setting: Setting, asks: Sequence[Ask], known: Sequence[Sequence[int]]) -> list[list[Outcome]]:
    """Runs all to their ends; outcomes per ask. No engine keeps a block or a request."""
    mixed = Mixed(model, setting, known)
    asked = [ask.requests() for ask in asks]
    deltas: dict[str, list[TokenDelta]] = {item.request_id: [] for items in asked for item in items}
    last = max(ask.arrival for ask in asks)
    for turn in range(20_000):
        for ask, items in zip(asks, asked):
            if ask.arrival == turn:
                for item in items:
                    mixed.submit(item)
            if ask.abort is not None and ask.arrival + ask.abort == turn:
                mixed.abort(items[-1].request_id)
        for delta in mixed.turn():
            deltas[delta.request_id].append(delta)
        if turn > last and mixed.over:
            break
    else:
        raise AssertionError("the engines do not come to an end")
    for engine in mixed.engines:
        assert (engine.core.num_used_blocks, engine.core.num_running, engine.core.num_waiting) == (0, 0, 0)
        engine.close()
    return [[outcome_of(deltas[item.request_id]) for item in items] for items in asked]

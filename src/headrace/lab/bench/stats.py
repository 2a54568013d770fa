"""Repeated measurements as a median with its spread. Pure arithmetic and a clock; decides nothing."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, smallest and largest of ``runs`` values of one unit."""

    median: float
    low: float
    high: float
    runs: int

    def inverted(self, amount: float) -> Spread:
        """Seconds into a rate: ``amount`` per second. The largest time becomes the smallest rate."""
        return Spread(amount / self.median, amount / self.high, amount / self.low, self.runs)

    def scaled(self, factor: float) -> Spread:
        """The same in another unit; ``factor`` must be positive."""
        return Spread(self.median * factor, self.low * factor, self.high * factor, self.runs)


def spread(values: Sequence[float]) -> Spread:
    """Raises ValueError when there is no value."""
    if not values:
        raise ValueError("a spread needs at least one value")
    return Spread(statistics.median(values), min(values), max(values), len(values))


def seconds(run: Callable[[], object]) -> float:
    """Wall-clock seconds of one call."""
    start = perf_counter()
    run()
    return perf_counter() - start


def timed(run: Callable[[], object], repeats: int, warm_up: int = 1) -> Spread:
    """Seconds of ``repeats`` calls, after ``warm_up`` calls that are not counted."""
    for _ in range(warm_up):
        run()
    return spread([seconds(run) for _ in range(repeats)])

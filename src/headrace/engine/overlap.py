"""OverlapMeter: what overlap gains, measured. How long the device stood idle although there was work, and how much of
the loop's own work was hidden behind the device's.

    bubble of a step = idle before its forward (since the step before, or since the loop woke) + idle before its sample
    overlap ratio    = 1 - bubble / host, at least 0; host: all that the loop's thread did but wait for the device

Counts only; decides nothing. One thread.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter_ns

from headrace.contract.result import StepTimes
from headrace.contract.stats import OverlapStats
from headrace.obs.metrics import BUBBLE_SECONDS, SECONDS


class OverlapMeter:
    """``clock`` must be the one of the worker's StepTimes."""

    def __init__(self, clock: Callable[[], int] = perf_counter_ns) -> None:
        self._clock = clock
        self._since = self._woke = self._last_end = self._waited = 0
        self._counts = [0] * (len(BUBBLE_SECONDS) + 1)
        self._busy_counts = [0] * (len(SECONDS) + 1)
        self._busy = self._bubble = self._host = self._last_bubble = 0

    def turn_begins(self, resting: bool) -> None:
        """``resting``: there was nothing to do, so idleness before now is nobody's fault."""
        self._waited = 0
        if resting:
            self._since = self._woke = self._clock()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Time inside is the device's, not the loop's."""
        self._waited -= self._clock()
        try:
            yield
        finally:
            self._waited += self._clock()

    def turn_ends(self, worked: bool) -> None:
        """``worked``: a step was launched or finished; turns that only looked for work do not count.

        What the thread did with the news between two turns counts: the device may have stood idle for it.
        """
        now = self._clock()
        if worked:
            self._host += max(0, now - self._since - self._waited)
        self._since = now

    def finished(self, times: StepTimes | None) -> None:
        """A step came back. Steps come in order; one without times is passed over."""
        if times is None:
            return
        before = max(0, times.forward_start_ns - max(self._last_end, self._woke))
        bubble = before + max(0, times.sample_start_ns - times.forward_end_ns)
        self._busy += times.busy_ns
        self._busy_counts[bisect_left(SECONDS, times.busy_ns / 1e9)] += 1
        self._bubble += bubble
        self._last_bubble, self._last_end = bubble, times.sample_end_ns
        self._counts[bisect_left(BUBBLE_SECONDS, bubble / 1e9)] += 1

    def snapshot(self) -> OverlapStats:
        return OverlapStats(
            busy_ns=self._busy,
            bubble_ns=self._bubble,
            host_ns=self._host,
            last_bubble_ns=self._last_bubble,
            bubble_counts=list(self._counts),
            busy_counts=list(self._busy_counts),
        )

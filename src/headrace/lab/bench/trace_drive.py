"""Drives an engine with a trace, open loop: requests come when the trace says, whether or not earlier ones are done.

Takes times at the client's edge: what a caller would see. Decides nothing about what they mean.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter, sleep

from headrace.contract.errors import HeadraceError
from headrace.contract.request import Request, SamplingParams
from headrace.contract.result import TokenDelta
from headrace.engine.client import EngineClient

from .trace_file import Arrival
from .workload import draw_prompt


@dataclass(slots=True)
class Times:
    """Of one run, in seconds. ``first``: per request, from when it was due. ``gaps``: per token after the first."""

    total_s: float = 0.0
    num_output: int = 0
    first: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)


def requests_of(arrivals: Sequence[Arrival], name: str) -> list[Request]:
    """Greedy requests of drawn ids that generate exactly as much as the trace says."""
    return [
        Request(
            request_id=f"{name}-{i}",
            prompt_token_ids=draw_prompt(arrival.prompt, f"trace {name} {i}"),
            sampling=SamplingParams(max_tokens=arrival.output, temperature=0.0, ignore_eos=True, seed=0),
        )
        for i, arrival in enumerate(arrivals)
    ]


class Drive:
    """One run. ``run`` submits from its thread; deltas come on the client's."""

    def __init__(self, client: EngineClient, arrivals: Sequence[Arrival], name: str) -> None:
        self._client = client
        self._arrivals = arrivals
        self._requests = requests_of(arrivals, name)
        self._due: dict[str, float] = {}
        self._last: dict[str, float] = {}
        self._news = threading.Condition()
        self._num_ended = 0
        self._failure: str | None = None
        self._times = Times()

    def run(self, deadline_s: float) -> Times:
        """Raises HeadraceError when a request fails, or all are not done ``deadline_s`` after the last arrival."""
        start = perf_counter()
        for arrival, request in zip(self._arrivals, self._requests):
            due = start + arrival.at_s
            if (early := due - perf_counter()) > 0:
                sleep(early)
            self._due[request.request_id] = due
            self._client.submit(request, self._take)
        with self._news:
            over = lambda: self._failure is not None or self._num_ended == len(self._requests)  # noqa: E731
            if not self._news.wait_for(over, deadline_s):
                raise HeadraceError(f"{self._num_ended} of {len(self._requests)} requests ended in time")
        if self._failure is not None:
            raise HeadraceError(self._failure)
        self._times.total_s = perf_counter() - start
        return self._times

    def _take(self, delta: TokenDelta) -> None:
        now, name, count = perf_counter(), delta.request_id, len(delta.token_ids)
        with self._news:
            times = self._times
            if count and name not in self._last:
                times.first.append(now - self._due[name])
            elif count:
                times.gaps += [(now - self._last[name]) / count] * count
            if count:
                self._last[name] = now
                times.num_output += count
            if delta.finish_reason is not None:
                times.whole.append(now - self._due[name])
                self._num_ended += 1
                if delta.finish_reason != "length":
                    self._failure = f"request {name} ended with {delta.finish_reason}: {delta.error or 'no reason'}"
                self._news.notify_all()

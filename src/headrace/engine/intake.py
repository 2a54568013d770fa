"""Intake: the door of the engine. Requests and aborts arrive from any thread; the loop drains them between steps.

Bounded: beyond ``max_waiting`` unfinished submissions a request is refused, never silently dropped.
"""

from __future__ import annotations

import threading
from collections import deque

from headrace.contract.errors import EngineDead, QueueFull
from headrace.contract.request import Request


class Intake:
    """Thread-safe. ``submit``/``abort`` from anywhere; ``drain_*`` from the loop only."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._requests: deque[Request | None] = deque()  # None: whatever came before it is to end
        self._ends: deque[tuple[str, str]] = deque()
        self._lost: deque[tuple[Request, tuple[int, ...]]] = deque()
        self._wake = threading.Condition()
        self._closed = False
        self._poked = 0

    def submit(self, request: Request, num_waiting: int = 0) -> None:
        """Raises QueueFull, EngineDead when the engine is closed."""
        with self._wake:
            if self._closed:
                raise EngineDead("the engine is closed")
            if len(self._requests) + num_waiting >= self._capacity:
                raise QueueFull(f"{self._capacity} requests are waiting; try again later")
            self._requests.append(request)
            self._wake.notify_all()

    def has_room(self, count: int, num_waiting: int) -> bool:
        """Whether ``count`` more submissions would be taken now."""
        return len(self._requests) + num_waiting + count <= self._capacity

    @property
    def busy(self) -> bool:
        """Something is waiting to be drained."""
        return bool(self._requests or self._ends or self._lost)

    def end(self, request_id: str, reason: str) -> None:
        """Asks for an early end: ``abort`` by the caller, or ``stop`` for a stop string found in the text."""
        with self._wake:
            self._ends.append((request_id, reason))
            self._wake.notify_all()

    def abandon(self) -> None:
        """Ends whatever was asked for until now, or is on its way here, and tells nobody: who asked is gone."""
        with self._wake:
            self._requests = deque([None])
            self._ends.clear()
            self._lost.clear()
            self._wake.notify_all()

    def drain_requests(self) -> list[Request | None]:
        """In order of arrival; None where everything that came before it was abandoned."""
        if not self._requests:  # what comes this moment comes with the next turn
            return []
        with self._wake:
            out = list(self._requests)
            self._requests.clear()
            return out

    def drain_ends(self) -> list[tuple[str, str]]:
        """Ends of requests that were drained before. One whose request still waits here stays with it: taken first, it
        would find nothing to end, and the request would run to its own end."""
        if not self._ends:
            return []
        with self._wake:
            waiting = {request.request_id for request in self._requests if request is not None}
            out = [end for end in self._ends if end[0] not in waiting]
            self._ends = deque(end for end in self._ends if end[0] in waiting)
            return out

    def lose(self, request: Request, output_ids: tuple[int, ...]) -> None:
        """A request's giver died after it had reported these tokens; the engine may have it, or not."""
        with self._wake:
            self._lost.append((request, output_ids))
            self._wake.notify_all()

    def drain_lost(self) -> list[tuple[Request, tuple[int, ...]]]:
        if not self._lost:
            return []
        with self._wake:
            out = list(self._lost)
            self._lost.clear()
            return out

    def wait(self, timeout_s: float) -> None:
        """Sleeps until something arrives, the door closes, or the deadline passes."""
        with self._wake:
            if not (self.busy or self._closed or self._poked):
                self._wake.wait(timeout_s)
            self._poked = max(0, self._poked - 1)

    def poke(self, turns: int = 1) -> None:
        """Wakes the loop for some turns although nothing arrived: another rank of its group has work, and none may be
        missing. That rank may have cast its vote just before; the work comes up one turn later, so two are safe."""
        with self._wake:
            self._poked = max(self._poked, turns)
            self._wake.notify_all()

    def close(self) -> None:
        with self._wake:
            self._closed = True
            self._wake.notify_all()

    @property
    def closed(self) -> bool:
        return self._closed

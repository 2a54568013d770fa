"""Builders: the threads that compile constraints. One that is stuck is left behind and replaced, within a bound.

A compilation cannot be stopped, only forsaken: its thread then goes on at the lowest priority and ends with it. So a
few hopeless constraints never keep everybody else's from being compiled, and a named owner has half of the threads at
most. The threads hold up no end of the program.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

LOWEST = 19  # the priority of what nobody waits for
STACK_BYTES = 512 << 20  # a compiler goes into itself as often as a schema refers on; only what is touched is taken


@dataclass(eq=False, slots=True)
class Job:
    """``owner``: who wants it; "" is everybody. ``forsaken``: it runs, nobody waits for it. ``thread``: the system's
    number of the one that runs it."""

    call: Callable[[], Any]
    owner: str = ""
    future: Future[Any] = field(default_factory=Future)
    forsaken: bool = False
    thread: int | None = None


class Builders:
    """Thread-safe. ``threads``: how many jobs run that somebody waits for; ``most``: with those that are forsaken."""

    def __init__(self, threads: int, most: int) -> None:
        self._threads, self._most = threads, most
        self._lock = threading.Lock()
        self._waiting: list[Job] = []
        self._running = self._forsaken = 0
        self._running_of, self._forsaken_of = Counter[str](), Counter[str]()

    def submit(self, call: Callable[[], Any], owner: str = "") -> Job:
        """``call`` runs as soon as there is a thread for its owner; its result, or what it raises, is the future's."""
        job = Job(call, owner)
        with self._lock:
            self._waiting.append(job)
            self._hire()
        return job

    def forsake(self, job: Job) -> None:
        """Nobody waits for it any more. One that has not begun never will."""
        with self._lock:
            if job in self._waiting:
                self._waiting.remove(job)
                job.future.cancel()
            elif not (job.forsaken or job.future.done()):
                job.forsaken = True
                self._running -= 1
                self._forsaken += 1
                self._running_of[job.owner] -= 1
                self._forsaken_of[job.owner] += 1
                _stand_back(job.thread)
                self._hire()

    def close(self) -> None:
        """What has not begun never will."""
        with self._lock:
            while self._waiting:
                self._waiting.pop(0).future.cancel()

    def _hire(self) -> None:
        """Under the lock: one more thread, if there is work and room for it."""
        room = self._running < self._threads and self._running + self._forsaken < self._most
        if room and self._next() is not None:
            self._start(STACK_BYTES)
            self._running += 1

    def _start(self, stack_bytes: int) -> None:
        """Where there is no room for such a stack, one with the usual stack."""
        before = threading.stack_size(stack_bytes)
        try:
            threading.Thread(target=self._work, name="headrace-grammar", daemon=True).start()
            return
        except RuntimeError:
            if not stack_bytes:
                raise
        finally:
            threading.stack_size(before)
        self._start(0)

    def _next(self) -> Job | None:
        """Under the lock: the first of the owner that has the fewest threads, among those that may have one more."""
        allowed = [job for job in self._waiting if not job.owner or self._has_share_left(job.owner)]
        return min(allowed, key=lambda job: self._running_of[job.owner], default=None)

    def _has_share_left(self, owner: str) -> bool:
        running = self._running_of[owner]
        within = running + self._forsaken_of[owner] < max(1, self._most // 2)
        return within and running < max(1, self._threads // 2)

    def _work(self) -> None:
        while (job := self._take()) is not None:
            try:
                result = job.call()
            except BaseException as error:
                job.future.set_exception(error)
            else:
                job.future.set_result(result)
            if self._left_behind(job):
                return

    def _take(self) -> Job | None:
        with self._lock:
            if (job := self._next()) is None:
                self._running -= 1
                return None
            self._waiting.remove(job)
            self._running_of[job.owner] += 1
            job.future.set_running_or_notify_cancel()
            job.thread = threading.get_native_id()
            return job

    def _left_behind(self, job: Job) -> bool:
        """After a job: whether this thread was replaced meanwhile."""
        with self._lock:
            if job.forsaken:
                self._forsaken -= 1
                self._forsaken_of[job.owner] -= 1
                self._hire()
            else:
                self._running_of[job.owner] -= 1
            return job.forsaken


def _stand_back(thread: int | None) -> None:
    """Lets a thread of this process have only the time that others leave; where the system knows no such thing, so be
    it."""
    if thread is not None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, thread, LOWEST)

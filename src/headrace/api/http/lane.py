"""Lane: work on a few threads, its owners in turn: whatever one brings, another waits for one piece of it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

Made = TypeVar("Made")


class Lane:
    """Thread-safe. Takes whatever is submitted: whoever submits has counted before."""

    def __init__(self, threads: int = 1, name: str = "large-bodies") -> None:
        self._threads = ThreadPoolExecutor(threads, name)
        self._lock = threading.Lock()
        self._lines: dict[Hashable, deque[tuple[Future[Any], Callable[[], Any]]]] = {}  # the next owner is first

    def submit(self, owner: Hashable, work: Callable[[], Made]) -> Future[Made]:
        """The future of ``work``, which runs when its owner's turn comes."""
        future: Future[Made] = Future()
        with self._lock:
            self._lines.setdefault(owner, deque()).append((future, work))
        self._threads.submit(self._do_next)
        return future

    def _do_next(self) -> None:
        future, work = self._next()
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    def _next(self) -> tuple[Future[Any], Callable[[], Any]]:
        with self._lock:
            owner = next(iter(self._lines))
            line = self._lines.pop(owner)
            first = line.popleft()
            if line:
                self._lines[owner] = line  # behind the others
            return first

    def close(self) -> None:
        """What is under way runs on; what waits is dropped."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            for line in self._lines.values():
                for future, _ in line:
                    future.cancel()
            self._lines.clear()

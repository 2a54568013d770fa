"""Starting several engines at once: all of them are there afterwards, or none is.

One that fails, or whoever does not need them any more, ends the wait of all: the others could only wait for it. Never
leaves a process behind, whatever the failure, an interrupt (Ctrl-C) included.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from .process import ProcessClient


class Flag(Protocol):
    """Set by another thread when there is no sense in going on; a ``threading.Event`` is one."""

    def is_set(self) -> bool: ...


class EitherFlag:
    """Set when one of two is."""

    def __init__(self, mine: Flag, theirs: Flag | None) -> None:
        self._mine, self._theirs = mine, theirs

    def is_set(self) -> bool:
        return self._mine.is_set() or (self._theirs is not None and self._theirs.is_set())


Start = Callable[[Flag], "ProcessClient"]


def start_together(starts: Sequence[Start], give_up: Flag | None = None) -> list[ProcessClient]:
    """Calls each on a thread of its own. ``give_up``: the caller's; each gets a flag that is also set when another
    one fails. Raises the first failure, or the interrupt."""
    stop = threading.Event()
    flag = EitherFlag(stop, give_up)
    failures: list[Exception] = []

    def attempt(start: Start) -> ProcessClient | None:
        try:
            return start(flag)
        except Exception as error:
            failures.append(error)
            stop.set()
            return None

    pool = ThreadPoolExecutor(len(starts))
    futures: list[Future[ProcessClient | None]] = []
    try:  # from the first one on: an interrupt may come between two of them
        for start in starts:
            futures.append(pool.submit(attempt, start))
        pool.shutdown(wait=False)
        wait(futures)
    except BaseException:
        stop.set()
        _end(futures, "the start was interrupted")
        raise
    if failures:
        _end(futures, str(failures[0]))
        raise failures[0]
    return [client for future in futures if (client := future.result()) is not None]


def _end(futures: Sequence[Future[ProcessClient | None]], why: str) -> None:
    """Those that were started, or will be in a moment: at once, they have done nothing yet."""
    for future in futures:
        client = future.result()
        if client is not None:
            client.kill(why)
            client.close()


def ended_at_start(what: str, exit_code: int | None) -> str:
    """Why a child never got ready, and what its user may have forgotten."""
    words = f"{what} ended at start (exit code {exit_code})"
    if exit_code is not None and exit_code < 0:  # a signal
        return words
    hint = 'needs `if __name__ == "__main__":` around its work, and cannot be read from standard input'
    return f"{words}. A script that starts one {hint}"

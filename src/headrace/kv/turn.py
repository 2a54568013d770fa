"""Whose turn it is to change an index: one thread of one process at a time, and nobody is waited for without end.

LMDB has a lock of its own for that, which ends with its holder but waits for ever for one that is stopped, frozen with
its container or held up by its disk. So this lock is taken first: the data file's, which the system frees with its
holder. Where files cannot be locked there is LMDB's alone.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from headrace.contract.files import try_lock

WAIT_S = 2.0  # a change takes a millisecond
AGAIN_S = 10.0  # after a wait in vain nobody waits for so long: each call looks once
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.0002, 0.01  # between two looks


class Turn:
    """Thread-safe. Of an existing file; raises OSError when it cannot be opened."""

    def __init__(self, path: Path, wait_s: float = WAIT_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._wait_s, self._clock = path, wait_s, clock
        self._mine = threading.Lock()
        self._in_vain_s: float | None = None
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Raises TimeoutError when somebody else has it for too long, ValueError when it is closed. Not to be taken
        twice by one thread."""
        end = self._clock() + (0.0 if self._hopeless() else self._wait_s)
        if not self._mine.acquire(timeout=max(0.0, end - self._clock())):
            raise self._late()
        try:
            locks = self._await_file(end)
            try:
                yield
            finally:
                if locks and self._fd >= 0:
                    fcntl.flock(self._fd, fcntl.LOCK_UN)
        finally:
            self._mine.release()

    def _hopeless(self) -> bool:
        return self._in_vain_s is not None and self._clock() - self._in_vain_s < AGAIN_S

    def _await_file(self, end: float) -> bool:
        """Whether files can be locked here; then this one is."""
        pause = FIRST_PAUSE_S
        while True:
            try:
                if try_lock(self._fd):
                    self._in_vain_s = None
                    return True
            except OSError as error:
                if error.errno in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
                    return False
                raise
            if self._clock() >= end:
                raise self._late()
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def _late(self) -> TimeoutError:
        self._in_vain_s = self._in_vain_s if self._hopeless() else self._clock()
        words = "somebody who stands still is changing the index (a process that was stopped, or a disk that hangs)"
        return TimeoutError(errno.ETIMEDOUT, words, str(self._path))

    def close(self) -> None:
        """Nobody changes anything any more: later calls raise. What is under way is waited for, if not for ever."""
        mine = self._mine.acquire(timeout=self._wait_s)
        fd, self._fd = self._fd, -1
        os.close(fd)
        if mine:
            self._mine.release()

"""Fetcher: a Reader over processes that fetch. When one dies another is started after a while; until then all misses.

It asks ahead, so that the process reads and checks one value while the one before is copied out.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence

from headrace.contract.errors import StoreError
from headrace.contract.ports import Bytes

from .connector import FETCH_THREADS
from .fetch_process import Asked, FetchProcess
from .opening import Errand
from .reading import Wanted
from .ring import RingShape
from .shared import sweep_orphans

log = logging.getLogger("headrace.kv")

RING_BYTES = 64 << 20
LEAST_SLOTS, MOST_SLOTS = 4, 32
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
END_S = 5.0


def ring_for(value_bytes: int) -> RingShape:
    """The ring for values of at most so many bytes: 64 MiB, but 4 slots at least and 32 at most."""
    return RingShape(max(LEAST_SLOTS, min(MOST_SLOTS, RING_BYTES // max(1, value_bytes))), value_bytes)


class Pauses:
    """How long to wait before the next life: twice as long after each short one, 60 s at most."""

    def __init__(self, first_s: float = FIRST_PAUSE_S) -> None:
        self._first_s = self._next_s = first_s

    def after(self, lived_s: float) -> float:
        """``lived_s``: how long the last one was of use. One that lived longer than the longest pause begins anew."""
        if lived_s > LONGEST_PAUSE_S:
            self._next_s = self._first_s
        pause, self._next_s = self._next_s, min(2 * self._next_s, LONGEST_PAUSE_S)
        return pause


class Fetcher:
    """A Reader. ``start`` starts a process that is ready; the first one at once, in this thread. Raises StoreError."""

    def __init__(self, start: Callable[[], FetchProcess], ahead: int, pauses: Pauses | None = None) -> None:
        """``ahead``: values of one fetch that are asked for at a time."""
        self._start, self._ahead, self._pauses = start, ahead, pauses or Pauses()
        self._closing = threading.Event()
        self.life = start()
        self._thread = threading.Thread(target=self._run, name="headrace-kv-fetch", daemon=True)
        self._thread.start()

    def read(self, lease: int, names: Sequence[Wanted], deadline: float) -> Generator[Bytes | None]:
        life, open_questions = self.life, deque[Asked]()
        rest = iter(names)
        try:
            for _ in names:
                while len(open_questions) < self._ahead and (name := next(rest, None)) is not None:
                    open_questions.append(life.ask(lease, name, deadline))
                yield life.value(open_questions.popleft(), deadline)
        finally:
            for asked in open_questions:
                life.cancel(asked)

    def _run(self) -> None:
        """One life after the other."""
        while True:
            began = time.monotonic()
            if self._closing.is_set():  # while this life was starting
                self.life.kill()
            self.life.serve()
            self.life.close()
            if self._closing.is_set() or not self._begin_anew(time.monotonic() - began):
                return

    def _begin_anew(self, lived_s: float) -> bool:
        """Whether there is another life; false when the fetcher is closed."""
        while not self._closing.is_set():
            pause = self._pauses.after(lived_s)
            log.warning("the process that fetches from the KV store is gone; another one in %g s", pause)
            if self._closing.wait(pause):
                return False
            try:
                self.life = self._start()
                return True
            except StoreError as error:
                log.warning("it did not start: %s", error)
                lived_s = 0.0
        return False

    def close(self) -> None:
        """Ends the process, which is killed if it does not end by itself; one still starting ends after that."""
        self._closing.set()
        self.life.end()
        self._thread.join(END_S)
        self.life.kill()
        self._thread.join(END_S)


def open_fetcher(errand: Errand, value_bytes: int) -> Fetcher:
    """The fetcher for a store and values of at most so many bytes. Raises StoreError."""
    sweep_orphans()
    shape = ring_for(value_bytes)

    def start() -> FetchProcess:
        life = FetchProcess(errand, shape)
        life.wait_opened()
        return life

    return Fetcher(start, max(2, shape.num_slots // FETCH_THREADS))

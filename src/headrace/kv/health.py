"""Says that a store has begun to fail, and that it works again: once each, so that one that is gone fills no log.

Every failure is a miss that is counted elsewhere; this is for whoever wonders why. Decides nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

log = logging.getLogger("headrace.kv")

MOST_CHARACTERS = 300  # of a reason: some libraries tell their whole state
AGAIN_S = 60.0  # the least time between two warnings of one kind, of a store that works now and then


class Health:
    """Of the store at ``where``. Thread-safe. ``what``: reading or writing, say; each has a state of its own."""

    def __init__(self, where: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._where, self._clock = where, clock
        self._lock = threading.Lock()
        self._failing: dict[str, int] = {}  # failures since a warning
        self._warned: dict[str, float] = {}

    def failed(self, what: str, reason: object) -> None:
        """A call failed; the first one is said."""
        with self._lock:
            if what in self._failing:
                self._failing[what] += 1
                return
            now = self._clock()
            if now - self._warned.get(what, -AGAIN_S) < AGAIN_S:
                return
            self._failing[what], self._warned[what] = 1, now
        text = str(reason).partition("\n")[0][:MOST_CHARACTERS]
        log.warning("the KV store at %s fails at %s: %s. Requests are served without it", self._where, what, text)

    def worked(self, what: str) -> None:
        """A call did what it should; said where a warning came before."""
        if what not in self._failing:  # nearly always, and then without the lock
            return
        with self._lock:
            count = self._failing.pop(what, 0)
        if count:
            log.warning("the KV store at %s works again (%s; %d calls had failed)", self._where, what, count)

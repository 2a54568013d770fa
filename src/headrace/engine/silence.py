"""Silence: how long another process has said nothing while somebody here was there to hear it.

A listener that stood still itself heard nothing either: a container that is frozen, a machine that is moved or sleeps
stops both sides, and that is no sign of a stuck one. Knows no socket and ends nobody.
"""

from __future__ import annotations

import time
from collections.abc import Callable

LOOK_S = 1.0  # the most that lies between two looks of a listener that runs


class Silence:
    """``clock``: in seconds, one that only goes forward."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._looked_s = clock()
        self._seconds = 0.0

    def heard(self) -> None:
        """It said something."""
        self._seconds, self._looked_s = 0.0, self._clock()

    def look(self) -> float:
        """Seconds of silence so far. To be asked often: what is more than ``LOOK_S`` since the last time is no
        silence of the other side's."""
        now = self._clock()
        self._seconds += min(now - self._looked_s, LOOK_S)
        self._looked_s = now
        return self._seconds

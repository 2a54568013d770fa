"""Leaves a store that did not answer alone for a while, so that a dead one costs one deadline and not one a request.

What somebody waits for leaves it alone the longer: a save, which nobody waits for, finds out first that it is back.
"""

from __future__ import annotations

import time
from collections.abc import Callable

BACKOFF_S = 10.0
AWAITED_BACKOFF_S = 60.0


class Backoff:
    """Thread-safe: it is one number, and whoever is late with it asks once more."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._silent_since: float | None = None

    def over(self, *, awaited: bool) -> bool:
        """Whether the store may be asked. ``awaited``: a request waits for the answer."""
        since = self._silent_since
        return since is None or self._clock() - since >= (AWAITED_BACKOFF_S if awaited else BACKOFF_S)

    def silent(self) -> None:
        """It did not answer."""
        self._silent_since = self._clock()

    def answered(self) -> None:
        self._silent_since = None

"""What a store that answers slowly is known to hold, so that a grain is copied once and not by every request.

By name: a grain's BLOCK may be there where its STATE is not. Only what was proven may be noted, and what is found to
be gone must be forgotten: else it would never be stored again. What is not known costs a copy, never a value.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from .backend import Name

MOST_KNOWN = 1 << 17  # names


class Known:
    """Thread-safe. Of more than ``most`` names the oldest are forgotten."""

    def __init__(self, most: int = MOST_KNOWN) -> None:
        self._most = most
        self._names: dict[Name, None] = {}
        self._lock = threading.Lock()

    def note(self, names: Iterable[Name]) -> None:
        """These are stored."""
        with self._lock:
            self._names |= dict.fromkeys(names)
            while len(self._names) > self._most:
                del self._names[next(iter(self._names))]

    def forget(self, names: Iterable[Name]) -> None:
        """These are gone, or may be."""
        with self._lock:
            for name in names:
                self._names.pop(name, None)

    def holds(self, names: Sequence[Name]) -> list[bool]:
        """Which of these are known to be stored."""
        with self._lock:
            return [name in self._names for name in names]

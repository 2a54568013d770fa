"""The directory: which engines said that they hold a value in memory. It may be wrong; whoever reads it asks them.

Bounded in names: the oldest are forgotten, which costs a recompute. Holds no values, and connects to nobody.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

from .backend import Name

MOST_NAMES = 1 << 18
MOST_HOLDERS = 4  # of one value, the latest


class Directory:
    """Used by one thread."""

    def __init__(self, most_names: int = MOST_NAMES, clock: Callable[[], float] = time.monotonic) -> None:
        self._most_names = most_names
        self._clock = clock
        self._heard_s: float | None = None
        self._holders: OrderedDict[Name, tuple[str, ...]] = OrderedDict()

    def announce(self, address: str, names: Sequence[Name]) -> None:
        """The engine that listens at ``address`` holds these."""
        self._heard_s = self._clock()
        for name in names:
            others = [other for other in self._holders.pop(name, ()) if other != address]
            self._holders[name] = (address, *others[: MOST_HOLDERS - 1])
        while len(self._holders) > self._most_names:
            self._holders.popitem(last=False)

    def find(self, names: Sequence[Name]) -> list[list[str]]:
        """Addresses of who said to hold each, the latest first."""
        return [list(self._holders.get(name, ())) for name in names]

    def withdraw(self, address: str) -> None:
        """The engine at ``address`` is gone, or does not answer."""
        self._heard_s = self._clock()
        for name in [name for name, holders in self._holders.items() if address in holders]:
            left = tuple(other for other in self._holders[name] if other != address)
            if left:
                self._holders[name] = left
            else:
                del self._holders[name]

    @property
    def age_s(self) -> float | None:
        """Since an engine last said something; None: none ever did."""
        return None if self._heard_s is None else self._clock() - self._heard_s

    def __len__(self) -> int:
        return len(self._holders)

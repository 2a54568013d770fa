"""The chooser: watches which chains a running store is asked for, and names the policy by which values leave.

It feeds the shadow (``shadow.py``) with the traffic itself, and starts once the store holds enough to say how many
values it has room for. It never touches what is stored; what it remembers is bounded.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from .policy import Ghosts, Item, Lru, Policy
from .shadow import CANDIDATES, Shadow

LEAST_VALUES = 64


class Chooser:
    """Thread-safe. ``policy`` given: that one stays, and only turns are counted."""

    def __init__(self, policy: Policy | None = None, candidates: Sequence[Policy] = CANDIDATES) -> None:
        self._fixed, self._candidates = policy, candidates
        self._ghosts: Ghosts | None = None
        self._shadow: Shadow | None = None
        self._clock = 0
        self._lock = threading.Lock()

    @property
    def policy(self) -> Policy:
        """The one in force."""
        if self._fixed is not None:
            return self._fixed
        return Lru() if self._shadow is None else self._shadow.best

    @property
    def watching(self) -> bool:
        return self._ghosts is not None

    def start(self, capacity: int) -> None:
        """Begins to watch, as for a store with room for so many values."""
        with self._lock:
            if self._ghosts is None:
                self._ghosts = Ghosts(capacity)
                self._shadow = None if self._fixed is not None else Shadow(capacity, self._candidates)

    def saw(self, keys: Sequence[bytes]) -> int:
        """A chain was asked for, and what is not here yet will be stored. Returns the turn that this is; 0: unknown."""
        with self._lock:
            if self._ghosts is None:
                return 0
            turn = self._ghosts.turn_of(keys)
            for depth in range(len(keys) - 1, -1, -1):
                self._clock += 1
                item = Item(self._clock, depth, turn, self._ghosts.touch(keys[depth], turn))
                if self._shadow is not None:
                    self._shadow.touch(keys[depth], item)
            return turn

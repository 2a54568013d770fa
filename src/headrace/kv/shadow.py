"""The shadow: policies tried on a sample of the traffic, and the one that shows a gain is switched on.

Names are sampled by their hash, and the shadows' capacity shrinks alike, so a small cache behaves like the large one
(spatial sampling; Waldspurger et al., SHARDS, FAST 2015). It never touches what is stored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Sequence

from .policy import Ghosts, Item, Lru, Policy, PolicyCache, Turns

SAMPLE = 8  # one name in so many
LEAST_SAMPLED = 64  # a smaller shadow says nothing
WINDOW = 1024  # sampled touches between two decisions
DECAY = 0.8  # what a window's hits are worth one window later
GAIN = 1.02  # a policy must be this much better than the one in force

CANDIDATES: tuple[Policy, ...] = (Lru(), Turns(0.5), Turns(2.0), Turns(8.0))


def _hash(key: Hashable) -> int:
    data = key if isinstance(key, bytes) else str(key).encode()
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


class Shadow:
    """Watches touches and names the policy that would have hit most of late. Starts with the first candidate."""

    def __init__(self, capacity: int, candidates: Sequence[Policy] = CANDIDATES) -> None:
        self._every = max(1, min(SAMPLE, capacity // LEAST_SAMPLED))
        self._caches = [PolicyCache(max(1, capacity // self._every), policy) for policy in candidates]
        self._hits = [0.0] * len(candidates)
        self._touches = 0
        self.best: Policy = candidates[0]

    def touch(self, key: Hashable, item: Item) -> bool:
        """Feeds one touch; true when ``best`` has changed."""
        if _hash(key) % self._every:
            return False
        # A sampled cache counts time in items of its own scale.
        small = Item(item.last // self._every, item.depth, item.turn, item.touches, item.size)
        for i, cache in enumerate(self._caches):
            self._hits[i] += cache.touch(key, small)
        self._touches += 1
        return self._touches % WINDOW == 0 and self._decide()

    def _decide(self) -> bool:
        policies = [cache.policy for cache in self._caches]
        current = self._hits[policies.index(self.best)]
        most = max(range(len(policies)), key=lambda i: self._hits[i])
        switched = policies[most] is not self.best and self._hits[most] > GAIN * current
        if switched:
            self.best = policies[most]
        self._hits = [DECAY * hits for hits in self._hits]
        return switched


class AdaptiveCache:
    """A cache of names whose policy the shadow chooses. ``request`` is a whole chain, first grain first."""

    def __init__(self, capacity: int, candidates: Sequence[Policy] = CANDIDATES) -> None:
        self._ghosts = Ghosts(capacity)
        self._cache = PolicyCache(capacity, candidates[0])
        self._shadow = Shadow(capacity, candidates) if len(candidates) > 1 else None
        self._clock = 0
        self.switches: list[tuple[int, str]] = []

    @property
    def policy(self) -> Policy:
        return self._cache.policy

    def request(self, keys: Sequence[Hashable]) -> int:
        """Serves a chain: returns how many leading grains were there; afterwards all are."""
        hits = next((i for i, key in enumerate(keys) if key not in self._cache.items), len(keys))
        turn = self._ghosts.turn_of(keys)
        for depth in range(len(keys) - 1, -1, -1):  # the deepest first, so that it is the oldest: leaf first
            self._touch(keys[depth], depth, turn)
        return hits

    def _touch(self, key: Hashable, depth: int, turn: int) -> None:
        self._clock += 1
        item = Item(self._clock, depth, turn, self._ghosts.touch(key, turn))
        self._cache.touch(key, item)
        if self._shadow is not None and self._shadow.touch(key, item):
            self._cache.switch(self._shadow.best)
            self.switches.append((self._clock, self._shadow.best.name))

"""Eviction policies: objects that rank what is stored; the lowest rank leaves first.

A policy is pure: it keeps no state and reads no clock, so that a shadow can try one beside another (``shadow.py``).
Time is counted in items touched, not in seconds: a capacity is then a lifetime.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

MOST_TURNS = 9  # a conversation's later turns count like this one
GHOSTS_PER_ITEM = 16  # names remembered after they have left, per item of capacity
LEAST_GHOSTS = 1 << 16


@dataclass(slots=True)
class Item:
    """What a policy may know of a stored grain.

    ``last``: when it was touched last. ``depth``: grains before it. ``turn``: 1 for what a first request brought, one
    more each time a request continued it. ``touches``: how often it was asked for. ``size``: bytes (1 in simulations).
    """

    last: int
    depth: int = 0
    turn: int = 1
    touches: int = 1
    size: int = 1


class Policy(Protocol):
    """``rank`` in items of time; ``capacity`` is that of the store, in items."""

    @property
    def name(self) -> str: ...

    def rank(self, item: Item, capacity: float) -> float: ...


@dataclass(frozen=True, slots=True)
class Lru:
    """Least recently used leaves first; of one request, the deepest."""

    name: str = "lru"

    def rank(self, item: Item, capacity: float) -> float:
        """The time of its last use."""
        del capacity
        return item.last


@dataclass(frozen=True, slots=True)
class Turns:
    """LRU, but every turn a conversation has had is worth ``bonus`` lifetimes of an untouched item.

    A conversation that has come back before comes back more likely than a new one: on the Mooncake conversation
    trace a first request's blocks are asked for again with 25 %, an eighth one's with 71 %.
    """

    bonus: float

    @property
    def name(self) -> str:
        return f"turns-{self.bonus:g}"

    def rank(self, item: Item, capacity: float) -> float:
        """The time of its last use, moved into the future by its turns."""
        return item.last + self.bonus * capacity * (min(item.turn, MOST_TURNS) - 1)


class Ghosts:
    """Turn and touches of names, also of those that have left. Bounded; the longest untouched is forgotten."""

    def __init__(self, capacity: int) -> None:
        self._bound = max(LEAST_GHOSTS, GHOSTS_PER_ITEM * capacity)
        self._known: OrderedDict[Hashable, tuple[int, int]] = OrderedDict()

    def turn_of(self, keys: Sequence[Hashable]) -> int:
        """The turn that a request for this chain is: one more than that of the deepest grain known already."""
        deepest = None
        for key in keys:
            if key not in self._known:
                break
            deepest = key
        # What everybody shares (a first grain alone) says nothing about a conversation.
        return 1 if deepest is None or deepest == keys[0] else self._known[deepest][0] + 1

    def touch(self, key: Hashable, turn: int) -> int:
        """Remembers; returns how often the name has been touched, this time included."""
        touches = self._known[key][1] + 1 if key in self._known else 1
        self._known[key] = (turn, touches)
        self._known.move_to_end(key)
        if len(self._known) > self._bound:
            self._known.popitem(last=False)
        return touches


class PolicyCache:
    """Names under a policy, at most ``capacity`` of them. Knows no bytes: for shadows and simulations."""

    def __init__(self, capacity: int, policy: Policy) -> None:
        self.capacity = capacity
        self.policy = policy
        self.items: dict[Hashable, Item] = {}
        self._heap: list[tuple[float, int, int, Hashable]] = []

    def touch(self, key: Hashable, item: Item) -> bool:
        """Puts an item in, or in its new place; true when it was there. May evict, also the item itself."""
        held = key in self.items
        self.items[key] = item
        self._push(key, item)
        if len(self.items) > self.capacity:
            self._evict()
        if len(self._heap) > 8 * len(self.items) + 1024:
            self._rebuild()
        return held

    def drop(self, key: Hashable) -> None:
        """Takes a name out; nothing happens when it is not there."""
        self.items.pop(key, None)

    def switch(self, policy: Policy) -> None:
        """Ranks everything anew."""
        self.policy = policy
        self._rebuild()

    def _push(self, key: Hashable, item: Item) -> None:
        rank = self.policy.rank(item, self.capacity)
        heapq.heappush(self._heap, (rank, -item.depth, item.last, key))

    def _rebuild(self) -> None:
        self._heap = []
        for key, item in self.items.items():
            self._push(key, item)

    def _evict(self) -> None:
        while True:
            _, _, last, key = heapq.heappop(self._heap)
            item = self.items.get(key)
            if item is not None and item.last == last:  # else: it has left, or moved since
                del self.items[key]
                return

"""The order in which values leave: expired ones first, then by the policy, to which depth counts as age; of equals the
deepest, which is shared by few and of no use without what is before it.

Ranking a store means looking at all of it. A large one keeps the beginning of the order from one eviction to the next
and is ranked anew when that has run out, or when as much has been stored since; what came meanwhile stays so long. It
forgets nothing itself, and belongs to the store's lock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .ages import expired, last_use
from .index import Entry, EntryKey
from .policy import Item, Policy

if TYPE_CHECKING:
    from .local import LocalStore

SMALL = 4096  # values that are ranked anew each time
KEPT_SHARE = 32  # one value in so many is kept in its order
AGE_PER_GRAIN = 2  # values by which a grain counts as older for each one before it: more than writing a chain takes
INCOMING: EntryKey = b""  # stands among the entries for what is not stored yet

Order = tuple[bool, float, int]
Pairs = list[tuple[EntryKey, Entry]]


@dataclass(frozen=True, slots=True)
class Place:
    """An entry in the order; the lowest leaves first."""

    order: Order
    key: EntryKey
    entry: Entry


@dataclass(frozen=True, slots=True)
class Choice:
    """Who leaves, bytes, and who is left in the order; ``settled``: these are enough, or all that are worth less."""

    keys: list[EntryKey]
    freed: int
    rest: list[Place]
    settled: bool


def order_of(entry: Entry, position: int, capacity: int, policy: Policy, now: float) -> Order:
    """``position``: how many of ``capacity`` values were used before it."""
    item = Item(position - AGE_PER_GRAIN * entry.depth, entry.depth, entry.turn, size=entry.length)
    return not expired(entry.ttl_class, last_use(entry.used, now), now), policy.rank(item, capacity), -entry.depth


def ranked(entries: Pairs, policy: Policy, now: float) -> list[Place]:
    """All of them, those that leave first, first."""
    entries = sorted(entries, key=lambda pair: (last_use(pair[1].used, now), -pair[1].depth))
    places = [
        Place(order_of(entry, position, len(entries), policy, now), key, entry)
        for position, (key, entry) in enumerate(entries)
    ]
    return sorted(places, key=lambda place: place.order)


class Kept:
    """The beginning of an order, and when each of all that were ranked was used."""

    def __init__(self, places: list[Place], ranked: list[Place], now: float) -> None:
        self.places = places[: 1 + len(ranked) // KEPT_SHARE]
        self._used = np.sort(np.array([last_use(place.entry.used, now) for place in ranked]))

    def order_of(self, incoming: Entry, policy: Policy, now: float) -> Order:
        """Where something that comes would stand."""
        position = int(np.searchsorted(self._used, last_use(incoming.used, now)))
        return order_of(incoming, position, len(self._used), policy, now)


class Leaving:
    """Of one store. ``small``: a store of fewer values is ranked anew each time."""

    def __init__(self, small: int = SMALL) -> None:
        self._small = small
        self._kept: dict[bytes | None, Kept] = {}
        self._policy: Policy | None = None
        self._until = 0  # puts of the store, after which what is kept is too old

    def victims(
        self, store: LocalStore, size: int, tenant: bytes | None, incoming: Entry | None, least: int
    ) -> list[EntryKey]:
        """``size`` bytes of the entries (of a tenant) that leave first and are worth less than ``incoming``; none where
        these are fewer than ``least`` bytes."""
        kept = self._kept.get(tenant)
        if kept is not None and store.policy == self._policy and store.counts.puts < self._until:
            limit = None if incoming is None else kept.order_of(incoming, store.policy, store.clock())
            choice = _choose(store, kept.places, size, limit)
            if choice.settled and choice.freed < least:
                return []
            if choice.settled:
                kept.places = choice.rest
                return choice.keys
        choice = self._choose_anew(store, size, tenant, incoming)
        return choice.keys if choice.freed >= least else []

    def _choose_anew(self, store: LocalStore, size: int, tenant: bytes | None, incoming: Entry | None) -> Choice:
        entries, policy, now = store.index.all_entries(), store.policy, store.clock()
        own = [pair for pair in entries if tenant in (None, pair[1].tenant)]
        places = ranked(own if incoming is None else [*own, (INCOMING, incoming)], policy, now)
        limit = next((place.order for place in places if place.key == INCOMING), None)
        places = [place for place in places if place.key != INCOMING]
        choice = _choose(store, places, size, limit)
        self._kept, self._policy = {}, policy
        if len(entries) >= self._small:
            self._until = store.counts.puts + len(entries) // KEPT_SHARE
            if store.tenant_quota_bytes is not None:
                self._kept |= {
                    name: Kept(group, group, now) for name, group in _by_tenant(entries, policy, now).items()
                }
            self._kept[tenant] = Kept(choice.rest, places, now)
        return choice


def _choose(store: LocalStore, places: list[Place], size: int, limit: Order | None) -> Choice:
    """Those that are still there as they were ranked, up to ``size`` bytes or the ``limit`` in the order."""
    keys: list[EntryKey] = []
    pinned: list[Place] = []
    freed = 0
    for at, place in enumerate(places):
        if freed >= size or (limit is not None and place.order >= limit):
            return Choice(keys, freed, pinned + places[at:], True)
        if store.pinned(place.key):
            pinned.append(place)
            continue
        entry = store.index.get(place.key)
        if entry is not None and entry.used == place.entry.used:
            keys.append(place.key)
            freed += entry.span
    return Choice(keys, freed, pinned, freed >= size)


def _by_tenant(entries: Pairs, policy: Policy, now: float) -> dict[bytes | None, list[Place]]:
    groups: dict[bytes | None, Pairs] = {}
    for pair in entries:
        groups.setdefault(pair[1].tenant, []).append(pair)
    return {tenant: ranked(group, policy, now) for tenant, group in groups.items()}

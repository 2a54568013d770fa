"""Leases: who may still read what. A leased value is not evicted before its lease ends; a dead holder's ends by itself.

Bounded in number and in bytes: beyond that a check answers "nothing here", which costs a recompute and nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from .index import EntryKey

MOST_LEASES = 4096


@dataclass(frozen=True, slots=True)
class Lease:
    number: int
    names: frozenset[EntryKey]
    size: int
    ends: float


class Leases:
    """Used by one thread. ``clock`` counts seconds from any moment."""

    def __init__(self, clock: Callable[[], float], most_bytes: int) -> None:
        self._clock, self._most_bytes = clock, most_bytes
        self._held: dict[int, Lease] = {}
        self._pins: Counter[EntryKey] = Counter()
        self._bytes = 0
        self._next = 1

    def grant(self, names: Iterable[EntryKey], size: int, seconds: float) -> Lease | None:
        """None when there are too many leases, or too much is leased."""
        self.sweep()
        if len(self._held) >= MOST_LEASES or self._bytes + size > self._most_bytes:
            return None
        lease = Lease(self._next, frozenset(names), size, self._clock() + seconds)
        self._next += 1
        self._held[lease.number] = lease
        self._pins.update(lease.names)
        self._bytes += size
        return lease

    def covers(self, number: int, name: EntryKey) -> bool:
        """Whether a lease still stands and is on this value."""
        lease = self._held.get(number)
        return lease is not None and self._clock() < lease.ends and name in lease.names

    def pinned(self, name: EntryKey) -> bool:
        return self._pins[name] > 0

    def release(self, number: int) -> None:
        """Ends a lease; nothing happens when it has ended."""
        lease = self._held.pop(number, None)
        if lease is not None:
            for name in lease.names:
                self._pins[name] -= 1
                if not self._pins[name]:
                    del self._pins[name]
            self._bytes -= lease.size

    def sweep(self) -> int:
        """Ends those whose time is over; returns how many."""
        over = [number for number, lease in self._held.items() if self._clock() >= lease.ends]
        for number in over:
            self.release(number)
        return len(over)

    def __len__(self) -> int:
        return len(self._held)

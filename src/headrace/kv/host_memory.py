"""Values in this process's memory, bounded in bytes: what was used longest ago leaves first, what is old is not told.

Nothing here outlives the process, and nothing is written anywhere.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.contract.ports import Bytes

from .ages import CHAT, expired
from .backend import Name


@dataclass(slots=True)
class Kept:
    """A value, its class of age, and when it was used last (seconds of the clock)."""

    value: Bytes
    ttl_class: int
    used: float


class HostMemory:
    """At most ``capacity_bytes`` of payloads. Thread-safe. Whoever gets a value must not write to it."""

    def __init__(self, capacity_bytes: int, clock: Callable[[], float] = time.time) -> None:
        self.capacity_bytes, self._clock = capacity_bytes, clock
        self.used_bytes = self.evicted = 0
        self._kept: OrderedDict[Name, Kept] = OrderedDict()
        self._lock = threading.Lock()

    def has(self, names: Sequence[Name]) -> list[bool]:
        """Which of them ``get`` would give; counts as no use."""
        with self._lock:
            return [self._fresh(name) is not None for name in names]

    def get(self, key: bytes, kind: int) -> Bytes | None:
        name = (key, kind)
        with self._lock:
            kept = self._fresh(name)
            if kept is None:
                return None
            kept.used = self._clock()
            self._kept.move_to_end(name)
            return kept.value

    def put(self, key: bytes, kind: int, value: Bytes, ttl_class: int = CHAT) -> bool:
        """Keeps it, unless it alone is larger than all there is room for; true when it is here afterwards."""
        name, size = (key, kind), len(value)
        with self._lock:
            if size > self.capacity_bytes:
                return False
            if self._fresh(name) is None:
                while self.used_bytes + size > self.capacity_bytes:
                    self._drop(next(iter(self._kept)))
                    self.evicted += 1
                self._kept[name] = Kept(value, ttl_class, self._clock())
                self.used_bytes += size
            return True

    def _fresh(self, name: Name) -> Kept | None:
        kept = self._kept.get(name)
        if kept is not None and expired(kept.ttl_class, kept.used, self._clock()):
            self._drop(name)
            return None
        return kept

    def _drop(self, name: Name) -> None:
        self.used_bytes -= len(self._kept.pop(name).value)

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()
            self.used_bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

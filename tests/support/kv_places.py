"""A place that keeps values in a dictionary, with scripted faults: killed, full, hanging, or flipping bits it reads."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

from headrace.contract.errors import StoreError
from headrace.kv.backend import Name
from headrace.kv.records import RecordSpec, StoreMatch, usable_grains
from headrace.kv.segment import Bytes

DEADLINE_S = 60.0


class Place:
    """A Backend. ``gate``: while it is cleared, every call waits; ``asked`` counts reads."""

    fast_lookups = True

    def __init__(self) -> None:
        self.values: dict[Name, tuple[Bytes, int]] = {}
        self.dead = self.full = self.flips = self.closed = False
        self.gate = threading.Event()
        self.gate.set()
        self.asked = 0

    def _gone(self) -> bool:
        assert self.gate.wait(DEADLINE_S)
        return self.dead or self.closed

    def has(self, keys: Sequence[Name]) -> list[bool]:
        gone = self._gone()
        return [not gone and name in self.values for name in keys]

    def match(self, keys: Sequence[bytes], specs: Sequence[RecordSpec], again: bool = False) -> StoreMatch:
        del again
        gone = self._gone()
        end = usable_grains(specs, len(keys), lambda i, kind: not gone and (keys[i], int(kind)) in self.values)
        return StoreMatch(end, self.values[keys[end - 1], int(specs[0].kind)][1] if end else 0)

    def get(self, key: bytes, kind: int) -> Bytes | None:
        self.asked += 1
        if self._gone() or (key, kind) not in self.values:
            return None
        value = self.values[key, kind][0].copy()
        if self.flips:
            value[-1] ^= 1
        return value

    def get_range(self, key: bytes, kind: int, offset: int, length: int) -> Bytes | None:
        value = self.get(key, kind)
        return None if value is None else value[offset : offset + length]

    def get_leased(self, lease: int, key: bytes, kind: int) -> Bytes | None:
        del lease
        return self.get(key, kind)

    def release(self, lease: int) -> None:
        """There was none."""

    def put(
        self,
        key: bytes,
        kind: int,
        payload: Bytes,
        *,
        tenant: bytes = bytes(16),
        depth: int = 0,
        turn: int = 1,
        ttl_class: int = 0,
    ) -> bool:
        del tenant, depth, ttl_class
        if self._gone():
            return False
        if self.full and (key, kind) not in self.values:
            return False
        self.values.setdefault((key, kind), (payload.copy(), turn))
        return True

    def delete(self, key: bytes, kind: int) -> bool:
        return not self._gone() and self.values.pop((key, kind), None) is not None

    def names(self) -> Iterator[Name]:
        if self._gone():
            raise StoreError("a place", "is dead")
        return iter(list(self.values))

    def close(self) -> None:
        self.closed = True

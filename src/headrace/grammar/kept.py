"""KeptGrammars: compiled constraints by what was asked for, the least lately used thrown out first. Never more bytes
than its limit; compiles nothing."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

Value = TypeVar("Value")


class KeptGrammars(Generic[Value]):
    """``limit_bytes`` 0 keeps nothing. Not thread-safe."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._kept: OrderedDict[bytes, tuple[Value, int]] = OrderedDict()
        self.num_bytes = 0

    def get(self, key: bytes) -> Value | None:
        """What was kept under ``key``; it then goes last."""
        if key not in self._kept:
            return None
        self._kept.move_to_end(key)
        return self._kept[key][0]

    def put(self, key: bytes, value: Value, num_bytes: int) -> None:
        """Keeps it, and others no longer where there is no room. What is larger than the limit alone is not kept."""
        self._drop(key)
        if num_bytes > self._limit_bytes:
            return
        while self.num_bytes + num_bytes > self._limit_bytes:
            self._drop(next(iter(self._kept)))
        self._kept[key] = value, num_bytes
        self.num_bytes += num_bytes

    def _drop(self, key: bytes) -> None:
        _, num_bytes = self._kept.pop(key, (None, 0))
        self.num_bytes -= num_bytes

"""How a fetch gets at the values it knows of: from the store itself, in turn, or from whatever else reads for it."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.contract.ports import Bytes


@dataclass(frozen=True, slots=True)
class Wanted:
    """A value of ``length`` bytes; one of another length is a miss."""

    key: bytes
    kind: int
    length: int


class Leased(Protocol):
    """The part of a store that reads. No call raises."""

    def get_leased(self, lease: int, key: bytes, kind: int) -> Bytes | None: ...


class Reader(Protocol):
    """Thread-safe; nothing raises. Every wait ends with the deadline."""

    def read(self, lease: int, names: Sequence[Wanted], deadline: float) -> Generator[Bytes | None]:
        """The values in their order; None is a miss. It may be closed before its end: nothing more is wanted then.

        ``deadline``: of ``time.monotonic``; what comes later is a miss.
        """
        ...

    def close(self) -> None: ...


class DirectReader:
    """Reads on the thread that asks, one value after the other."""

    def __init__(self, store: Leased) -> None:
        self._store = store

    def read(self, lease: int, names: Sequence[Wanted], deadline: float) -> Generator[Bytes | None]:
        for name in names:
            value = None if time.monotonic() > deadline else self._store.get_leased(lease, name.key, name.kind)
            yield value if value is not None and len(value) == name.length else None

    def close(self) -> None:
        """The store is its owner's."""

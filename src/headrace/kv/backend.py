"""What every place that keeps values must do: the local store and object stores alike pass one suite of checks.

Put-if-absent and idempotent; a value is there whole or not at all; what is read is checked. A failure is a miss, a put
that says false, or nothing deleted: no method but ``names`` raises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from headrace.contract.errors import StoreError
from headrace.contract.ports import Bytes

from .records import RecordSpec, StoreMatch, usable_grains

Name = tuple[bytes, int]
"""(key, kind)."""


class Backend(Protocol):
    """Thread-safe. ``fast_lookups``: whether ``has`` may be asked on the engine loop's thread."""

    @property
    def fast_lookups(self) -> bool: ...

    def has(self, keys: Sequence[Name]) -> list[bool]: ...

    def match(self, keys: Sequence[bytes], specs: Sequence[RecordSpec], again: bool = False) -> StoreMatch:
        """How many grains from a chain's start can be had. ``again``: asked by a request that has
        asked before, or by none: it is no turn of a conversation."""
        ...

    def get(self, key: bytes, kind: int) -> Bytes | None: ...

    def get_range(self, key: bytes, kind: int, offset: int, length: int) -> Bytes | None:
        """A part of a value; a miss where it does not reach so far."""
        ...

    def get_leased(self, lease: int, key: bytes, kind: int) -> Bytes | None: ...
    def release(self, lease: int) -> None: ...

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
        """Stores unless it is here; true when it is here afterwards."""
        ...

    def delete(self, key: bytes, kind: int) -> bool:
        """Whether there was something to forget."""
        ...

    def names(self) -> Iterator[Name]:
        """Everything that is here, in no order. Raises StoreError when it cannot be listed."""
        ...

    def close(self) -> None:
        """Later calls store and find nothing."""
        ...


class Gone:
    """A Backend that could not be opened: has nothing, takes nothing."""

    fast_lookups = True

    def has(self, keys: Sequence[Name]) -> list[bool]:
        return [False] * len(keys)

    def match(self, keys: Sequence[bytes], specs: Sequence[RecordSpec], again: bool = False) -> StoreMatch:
        del keys, specs, again
        return StoreMatch(0)

    def get(self, key: bytes, kind: int) -> Bytes | None:
        """Nothing."""

    def get_range(self, key: bytes, kind: int, offset: int, length: int) -> Bytes | None:
        """Nothing."""

    def get_leased(self, lease: int, key: bytes, kind: int) -> Bytes | None:
        """Nothing."""

    def release(self, lease: int) -> None:
        """There was none."""

    def put(self, key: bytes, kind: int, payload: Bytes, **fields: object) -> bool:
        del key, kind, payload, fields
        return False

    def delete(self, key: bytes, kind: int) -> bool:
        del key, kind
        return False

    def names(self) -> Iterator[Name]:
        raise StoreError("a place", "is gone")

    def close(self) -> None:
        """There is nothing to close."""


def part_of(value: Bytes | None, offset: int, length: int) -> Bytes | None:
    """A part of a value that was read; None where it does not reach so far."""
    inside = value is not None and offset >= 0 and length > 0 and offset + length <= len(value)
    return value[offset : offset + length] if value is not None and inside else None


def match_along(
    keys: Sequence[bytes], specs: Sequence[RecordSpec], has: Callable[[Sequence[Name]], list[bool]], at_once: int
) -> int:
    """How many grains from a chain's start can be had. Looks along it, ``at_once`` grains at a time, as far as it goes
    and not further: most chains are unknown from their first grain on, and a look-up may be a request."""
    held: dict[Name, bool] = {}
    for start in range(0, len(keys), at_once):
        names = [(key, int(spec.kind)) for key in keys[start : start + at_once] for spec in specs]
        held |= zip(names, has(names))
        if not all(held[key, int(specs[0].kind)] for key in keys[start : start + at_once]):
            break
    return usable_grains(specs, len(keys), lambda grain, kind: held.get((keys[grain], int(kind)), False))

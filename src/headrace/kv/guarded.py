"""A store behind a guard: whatever a call of it raises is a miss, a put that says false, or nothing done.

Stores promise to raise nothing. Where one breaks that (a library's own error, a file that holds nonsense, an answer of
another length than was asked for), neither the engine's loop nor a fetch may end by it. The engine calls stores through
this only. It is said in the log, as ``Health`` does; nothing is mended here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from headrace.contract.errors import reason
from headrace.contract.ports import Bytes

from .backend import Name
from .health import Health
from .records import RecordSpec, StoreMatch

if TYPE_CHECKING:
    from .connector import Store

T = TypeVar("T")


class Guarded:
    """A Store around one, which is its own from now on. ``health``: who says what was raised."""

    def __init__(self, store: Store, health: Health) -> None:
        self._store, self._health = store, health
        self.fast_lookups = store.fast_lookups

    def _call(self, what: str, call: Callable[[], T], otherwise: T) -> T:
        try:
            answer = call()
        except Exception as error:
            self._health.failed(what, reason(error))
            return otherwise
        self._health.worked(what)
        return answer

    def match(self, keys: Sequence[bytes], specs: Sequence[RecordSpec], again: bool = False) -> StoreMatch:
        """Never more than was asked for."""
        match = self._call("looking up", lambda: self._store.match(keys, specs, again), StoreMatch(0))
        return match if 0 <= match.grains <= len(keys) else replace(match, grains=0)

    def get_leased(self, lease: int, key: bytes, kind: int) -> Bytes | None:
        return self._call("reading", lambda: self._store.get_leased(lease, key, kind), None)

    def release(self, lease: int) -> None:
        self._call("releasing", lambda: self._store.release(lease), None)

    def has(self, keys: Sequence[Name]) -> list[bool]:
        nothing = [False] * len(keys)
        held = self._call("looking up", lambda: self._store.has(keys), nothing)
        return held if len(held) == len(keys) else nothing

    def put(
        self, key: bytes, kind: int, payload: Bytes, *, tenant: bytes, depth: int, turn: int, ttl_class: int
    ) -> bool:
        def put() -> bool:
            return self._store.put(key, kind, payload, tenant=tenant, depth=depth, turn=turn, ttl_class=ttl_class)

        return self._call("writing", put, False)

    def close(self) -> None:
        self._call("closing", self._store.close, None)

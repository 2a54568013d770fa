"""The store as a service: one thread that owns a socket and a local store, and answers one message after another.

A value is read only under a lease that a check has granted and that still stands, and every read is checked, so what is
given is right or it is a miss.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from .directory import Directory
from .index import entry_key
from .leases import Leases
from .local import LocalStore
from .records import Need, longest_prefix
from .segment import checksum
from .service import Frames, Service
from .wire import (
    Announce,
    Answer,
    Ask,
    Check,
    Checked,
    Facts,
    Find,
    Found,
    Get,
    Got,
    Has,
    Held,
    Put,
    Refused,
    Release,
    Request,
    Stored,
    Withdraw,
    that_fit,
)

LEASED_SHARE = 0.5  # of the capacity, at most


class StoreServer(Service):
    """``listen`` and ``secret`` as for a Service. It is a directory too: of what engines hold in their memory."""

    def __init__(
        self,
        store: LocalStore,
        listen: str,
        *,
        secret: bytes | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(listen, secret)
        self._store, self._directory = store, Directory(clock=clock)
        self._leases = Leases(clock, int(LEASED_SHARE * store.capacity_bytes))
        store.pinned = self._leases.pinned

    def _sweep(self) -> None:
        self._counts["leases_expired"] += self._leases.sweep()

    def _close(self) -> None:
        self._store.close()

    def _answer(self, request: Request, payloads: list[bytes]) -> tuple[Answer, Frames]:
        match request:
            case Check():
                return self._check(request), []
            case Has():
                return Held(number=request.number, held=self._store.has(request.names)), []
            case Get():
                return self._get(request)
            case Put():
                return self._put(request, payloads), []
            case Release():
                self._leases.release(request.lease)
                return Stored(number=request.number, stored=[]), []
            case Announce():
                self._directory.announce(request.address, request.names)
                return Stored(number=request.number, stored=[]), []
            case Withdraw():
                self._directory.withdraw(request.address)
                return Stored(number=request.number, stored=[]), []
            case Find():
                return Found(number=request.number, holders=self._directory.find(request.names)), []
            case Ask():
                return Facts(number=request.number, facts=self.facts()), []

    def _check(self, request: Check) -> Checked:
        names = [(key, rule.kind) for key in request.keys for rule in request.rules]
        held = dict(zip(names, self._store.has(names)))
        end = _usable(request, held)
        self._store.observe(request.keys, end, [rule.kind for rule in request.rules], request.again)
        needed = [(k, r.kind) for r in request.rules for k in request.keys[r.first_needed(end) : end]]
        kinds = sorted({kind for key, kind in needed})
        nothing = Checked(number=request.number, grains=0, kinds=[], lease=0, expires_in_s=0.0, turn=0)
        if end == 0:
            return nothing
        size = sum(self._store.sizes(needed))
        lease = self._leases.grant((entry_key(*name) for name in needed), size, request.lease_s)
        if lease is None:
            self._counts["leases_refused"] += 1
            return nothing
        turn = self._store.turn_of(request.keys[end - 1], request.rules[0].kind)
        return Checked(
            number=request.number, grains=end, kinds=kinds, lease=lease.number, expires_in_s=request.lease_s, turn=turn
        )

    def _get(self, request: Get) -> tuple[Answer, Frames]:
        if request.ranges is not None and len(request.ranges) != len(request.names):
            return Refused(number=request.number, reason="ranges: one per name"), []
        there: list[bool] = []
        crcs: list[int] = []
        frames: Frames = []
        leased = [self._leases.covers(request.lease, entry_key(*name)) for name in request.names]
        sizes = [size * covered for size, covered in zip(self._store.sizes(request.names), leased)]
        fit = that_fit(sizes)
        self._counts["gets_without_lease"] += leased.count(False)
        self._counts["gets_beyond_answer"] += fit.count(False)
        for i, (key, kind) in enumerate(request.names):
            value = self._store.get(key, kind) if leased[i] and fit[i] else None
            if value is not None and request.ranges is not None:
                offset, length = request.ranges[i]
                value = value[offset : offset + length] if offset + length <= len(value) else None
            there.append(value is not None)
            if value is not None:
                frames.append(value.data)
                crcs.append(checksum(value))
                self._counts["bytes_out"] += len(value)
        return Got(number=request.number, there=there, crcs=crcs), frames

    def _put(self, request: Put, payloads: list[bytes]) -> Answer:
        if not len(request.names) == len(request.depths) == len(request.crcs) == len(payloads):
            return Refused(number=request.number, reason="names, depths, checksums and payloads must be as many")
        fields: dict[str, Any] = {"tenant": request.tenant, "turn": request.turn, "ttl_class": request.ttl_class}
        stored = []
        for (key, kind), depth, crc, payload in zip(request.names, request.depths, request.crcs, payloads):
            value = np.frombuffer(payload, np.uint8)
            whole = checksum(value) == crc
            stored.append(whole and self._store.put(key, kind, value, depth=depth, **fields))
            self._counts["damaged_puts"] += not whole
            self._counts["bytes_in"] += len(value)
        return Stored(number=request.number, stored=stored)

    def facts(self) -> dict[str, int | float | str]:
        """The store's facts and this server's counts (``requests_...``)."""
        counts = {f"requests_{name}": count for name, count in sorted(self._counts.items())}
        age_s = self._directory.age_s
        heard = {} if age_s is None else {"directory_age_seconds": age_s}
        held = {"leases": len(self._leases), "held_by_engines": len(self._directory)}
        return {**self._store.stat(), **held, **heard, **counts}


def _usable(request: Check, held: dict[tuple[bytes, int], bool]) -> int:
    """``records.usable_grains`` for kinds by number."""
    needs = [
        Need(lambda grain, kind=rule.kind: held[request.keys[grain], kind], rule.first_needed, rule.window == 0)  # type: ignore[misc]
        for rule in request.rules
    ]
    return longest_prefix(needs, len(request.keys))

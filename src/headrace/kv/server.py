"""The store as a service: one thread that owns a socket and a local store, and answers one message after another.

A value is read only under a lease that a check has granted and that still stands, and every read is checked, so what is
given is right or it is a miss. A message that is none of ours is refused or dropped; it never stops the server.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import zmq

from headrace.contract.errors import StoreError

from .index import entry_key
from .leases import Leases
from .local import LocalStore
from .secret import Doorman, secure_server
from .segment import checksum
from .standing import refuse_taken
from .wire import (
    MOST_FRAME_BYTES,
    Answer,
    Ask,
    Check,
    Checked,
    Facts,
    Get,
    Got,
    Has,
    Held,
    Put,
    Refused,
    Release,
    Request,
    Stored,
)

log = logging.getLogger("headrace.kv")

POLL_MS = 200
HIGH_WATER = 1000  # messages a client may be behind
LEASED_SHARE = 0.5  # of the capacity, at most
LOOPBACK = ("tcp://127.0.0.1:", "tcp://[::1]:", "tcp://localhost:", "ipc://", "inproc://")

Frames = list[Any]


class StoreServer:
    """``listen`` is a ZeroMQ address; beyond this machine a secret is needed. Raises StoreError."""

    def __init__(
        self,
        store: LocalStore,
        listen: str,
        *,
        secret: bytes | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if secret is None and not listen.startswith(LOOPBACK):
            raise StoreError(listen, "needs a secret: without one only this machine may be listened on")
        refuse_taken(listen)
        self._store = store
        self._leases = Leases(clock, int(LEASED_SHARE * store.capacity_bytes))
        store.pinned = self._leases.pinned
        self._counts: Counter[str] = Counter()
        self._decoder = msgspec.msgpack.Decoder(Request)
        self._encode = msgspec.msgpack.Encoder().encode
        self._context: zmq.Context[Any] = zmq.Context()
        self._doorman = None if secret is None else Doorman(self._context, secret)
        self._socket = self._bind(listen, secret)
        self._closing = threading.Event()

    def _bind(self, listen: str, secret: bytes | None) -> zmq.Socket[bytes]:
        socket: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        socket.set_hwm(HIGH_WATER)
        socket.linger = 0
        socket.maxmsgsize = MOST_FRAME_BYTES
        if secret is not None:
            secure_server(socket, secret)
        try:
            socket.bind(listen)
        except zmq.ZMQError as error:
            socket.close()
            if self._doorman is not None:
                self._doorman.close()
            self._context.term()
            raise StoreError(listen, f"cannot be listened on: {error}") from error
        return socket

    @property
    def address(self) -> str:
        """Where it listens; a port of 0 or * has become one."""
        return self._socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def run(self) -> None:
        """Serves until ``stop``. Closes the socket and the store."""
        try:
            while not self._closing.is_set():
                if self._socket.poll(POLL_MS):
                    self._serve(self._socket.recv_multipart())
                self._counts["leases_expired"] += self._leases.sweep()
        finally:
            self.close()

    def close(self) -> None:
        """For a server that does not run (any more). May be called twice."""
        self._socket.close()
        if self._doorman is not None:
            self._doorman.close()
        self._context.term()
        self._store.close()

    def stop(self) -> None:
        """From any thread, or from a signal's handler."""
        self._closing.set()

    def _serve(self, frames: list[bytes]) -> None:
        if len(frames) < 2:
            return
        client, header, *payloads = frames
        try:
            request = self._decoder.decode(header)
        except msgspec.MsgspecError as error:
            self._counts["refused"] += 1
            number = _number(header)
            if number is not None:
                self._send(client, Refused(number=number, reason=str(error)), [])
            return
        self._counts[type(request).__name__.lower()] += 1
        try:
            answer, out = self._answer(request, payloads)
        except Exception as error:  # of one request; the others go on
            log.exception("a request failed")
            answer, out = Refused(number=request.number, reason=type(error).__name__), []
        self._send(client, answer, out)

    def _send(self, client: bytes, answer: Answer, payloads: Frames) -> None:
        try:
            self._socket.send_multipart([client, self._encode(answer), *payloads], zmq.NOBLOCK, copy=False)
        except zmq.ZMQError:  # it is gone, or takes nothing: its loss
            self._counts["unsent"] += 1

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
            case Ask():
                return Facts(number=request.number, facts=self.facts()), []

    def _check(self, request: Check) -> Checked:
        names = [(key, rule.kind) for key in request.keys for rule in request.rules]
        held = dict(zip(names, self._store.has(names)))
        end = _usable(request, held)
        self._store.observe(request.keys, end, [rule.kind for rule in request.rules])
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
        for i, (key, kind) in enumerate(request.names):
            leased = self._leases.covers(request.lease, entry_key(key, kind))
            value = self._store.get(key, kind) if leased else None
            self._counts["gets_without_lease"] += not leased
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
        return {**self._store.stat(), "leases": len(self._leases), **counts}


def _usable(request: Check, held: dict[tuple[bytes, int], bool]) -> int:
    """The longest prefix of which every kind has what it needs; as ``records.usable_grains``, for kinds by number."""
    end, agreed = len(request.keys), False
    while end > 0 and not agreed:
        agreed = True
        for rule in request.rules:
            needed = range(rule.first_needed(end), end)
            lacking = [i for i in needed if not held[request.keys[i], rule.kind]]
            if lacking:
                end, agreed = (lacking[0] if rule.window == 0 else lacking[-1]), False
    return end


def _number(header: bytes) -> int | None:
    """The number of a message that could not be read, to refuse it by."""
    try:
        number = msgspec.msgpack.decode(header)["number"]
    except (msgspec.MsgspecError, KeyError, TypeError):
        return None
    return number if isinstance(number, int) and number >= 0 else None

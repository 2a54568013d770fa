"""A store on another process or machine, as the connector sees one. Every wait has a deadline; every failure is a miss.

After a deadline has passed the server is left alone for a while. Thread-safe: a call takes a connection of its own from
a small pool.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec
import numpy as np
import zmq

from headrace._core import crc32c
from headrace.contract.errors import StoreError
from headrace.contract.ports import Bytes

from .backoff import Backoff
from .health import Health
from .records import Match, RecordSpec, StoreMatch
from .secret import secure_client
from .wire import (
    MOST_FRAME_BYTES,
    MOST_ITEMS,
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
    KindRule,
    Put,
    Release,
    Request,
    Stored,
    Withdraw,
)

CALL_TIMEOUT_S = 5.0
HIGH_WATER = 64

log = logging.getLogger("headrace.kv")

A = TypeVar("A", bound=Answer)


class RemoteStore:
    """Speaks to a ``StoreServer`` at ``address``. Connects when it is first asked; no call raises."""

    fast_lookups = False

    def __init__(
        self,
        address: str,
        *,
        secret: bytes | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
        lease_s: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self.address, self._secret, self._timeout_s, self._lease_s = address, secret, timeout_s, lease_s
        self._health = Health(address, clock)
        self._context: zmq.Context[Any] = zmq.Context()
        self._idle: list[zmq.Socket[bytes]] = []
        self._lock = threading.Lock()
        self._number = self._under_way = 0
        self._backoff = Backoff(clock)
        self._decoder = msgspec.msgpack.Decoder(Answer)
        self._encode = msgspec.msgpack.Encoder().encode
        self.closed, self.refused = False, 0

    @property
    def silent(self) -> bool:
        """Whether the last call that was made had no answer."""
        return not self._backoff.over(awaited=True)

    # -- what a connector asks ----------------------------------------------------------------------------------

    def match(self, keys: Sequence[bytes], specs: Sequence[RecordSpec], again: bool = False) -> StoreMatch:
        rules = [
            KindRule(int(s.kind), 0 if s.match is Match.ALL else s.window) for s in specs if s.match is not Match.NONE
        ]
        answer = self._call(
            lambda n: Check(number=n, keys=list(keys[:MOST_ITEMS]), rules=rules, lease_s=self._lease_s, again=again),
            Checked,
        )
        return StoreMatch(0) if answer is None else StoreMatch(answer[0].grains, answer[0].turn, answer[0].lease)

    def get_leased(self, lease: int, key: bytes, kind: int) -> Bytes | None:
        answer = self._call(lambda n: Get(number=n, lease=lease, names=[(key, kind)]), Got)
        return None if answer is None else _value(answer[0], answer[1])

    def get_range(self, lease: int, key: bytes, kind: int, offset: int, length: int) -> Bytes | None:
        """A part of a value; a miss where it does not reach so far."""
        ranges = [(offset, length)]
        answer = self._call(lambda n: Get(number=n, lease=lease, names=[(key, kind)], ranges=ranges), Got)
        return None if answer is None else _value(answer[0], answer[1])

    def release(self, lease: int) -> None:
        if lease:
            self._call(lambda n: Release(number=n, lease=lease), Stored)

    def has(self, keys: Sequence[tuple[bytes, int]]) -> list[bool]:
        answer = self._call(lambda n: Has(number=n, names=list(keys)), Held)
        return [False] * len(keys) if answer is None else answer[0].held

    def put(
        self, key: bytes, kind: int, payload: Bytes, *, tenant: bytes, depth: int, turn: int = 1, ttl_class: int = 0
    ) -> bool:
        def ask(number: int) -> Put:
            names, crcs = [(key, kind)], [int(crc32c(payload))]
            return Put(
                number=number, names=names, crcs=crcs, tenant=tenant, depths=[depth], turn=turn, ttl_class=ttl_class
            )

        answer = self._call(ask, Stored, [payload.data], awaited=False)
        stored = answer is not None and answer[0].stored == [True]
        if answer is not None and not stored:
            self._note_refused()
        return stored

    def _note_refused(self) -> None:
        """A server that answers and stores nothing fails no request: told once, counted by whoever saves."""
        self.refused += 1
        if self.refused == 1:
            reason = "what it holds is worth more, the tenant's quota is used up, or its disk fails"
            log.warning(
                "the KV store at %s refused a value: %s. Refused ones are counted as dropped", self.address, reason
            )

    # -- what a directory is asked ------------------------------------------------------------------------------

    def announce(self, address: str, names: Sequence[tuple[bytes, int]]) -> bool:
        """Tells that the engine listening at ``address`` holds these."""
        ask = self._call(lambda n: Announce(number=n, address=address, names=list(names)), Stored, awaited=False)
        return ask is not None

    def withdraw(self, address: str) -> None:
        self._call(lambda n: Withdraw(number=n, address=address), Stored, awaited=False)

    def find(self, names: Sequence[tuple[bytes, int]]) -> list[list[str]]:
        """Who said to hold each of these, the latest first; nobody where there is no answer."""
        answer = self._call(lambda n: Find(number=n, names=list(names)), Found)
        holders = [] if answer is None else answer[0].holders
        return holders if len(holders) == len(names) else [[] for _ in names]

    # -- anybody ------------------------------------------------------------------------------------------------

    def facts(self) -> dict[str, int | float | str]:
        """What the server says of itself. Raises StoreError when it does not answer."""
        answer = self._call(lambda n: Ask(number=n), Facts, told=False)
        if answer is None:
            raise StoreError(self.address, "does not answer (is it running, and is the secret the same?)")
        return answer[0].facts

    def close(self) -> None:
        """Nothing is asked any more. A call that waits has its answer or its deadline: a socket belongs to the thread
        that uses it, and the last one lets go of the context."""
        with self._lock:
            self.closed, last = True, self._under_way == 0
            sockets, self._idle = self._idle, []
        for socket in sockets:
            socket.close()
        if last:
            self._context.term()

    # -- one call -----------------------------------------------------------------------------------------------

    def _call(
        self, make: Any, kind: type[A], payloads: Sequence[Any] = (), *, awaited: bool = True, told: bool = True
    ) -> tuple[A, list[Any]] | None:
        """The answer and its payloads; None when it did not come in time, or was a refusal. ``told``: a failure is
        said in the log."""
        deadline = self._clock() + self._timeout_s
        with self._lock:
            if self.closed or not self._backoff.over(awaited=awaited):
                return None
            self._number += 1
            number = self._number
        request: Request = make(number)
        try:
            with self._socket() as socket:
                socket.send_multipart([self._encode(request), *payloads], zmq.NOBLOCK, copy=False)
                answer, frames = self._await(socket, number, deadline)
        except (zmq.ZMQError, msgspec.MsgspecError, TimeoutError) as error:
            self._backoff.silent()
            if told and not self.closed:
                self._health.failed("a request", error)
            return None
        self._backoff.answered()
        self._health.worked("a request")
        return (answer, frames) if isinstance(answer, kind) else None

    def _await(self, socket: zmq.Socket[bytes], number: int, deadline: float) -> tuple[Answer, list[Any]]:
        while True:
            left = deadline - self._clock()
            if left <= 0 or not socket.poll(int(left * 1000) + 1):
                raise TimeoutError(
                    f"no answer within {self._timeout_s:g} s (is it running, and is the secret the same?)"
                )
            frames = socket.recv_multipart(copy=False)
            answer = self._decoder.decode(frames[0].buffer)
            if answer.number == number:
                return answer, [frame.buffer for frame in frames[1:]]

    @contextmanager
    def _socket(self) -> Iterator[zmq.Socket[bytes]]:
        """A connection nobody else uses; one on which something went wrong is not used again. Closed: TimeoutError."""
        with self._lock:
            if self.closed:
                raise TimeoutError("closed")
            self._under_way += 1
            socket = self._idle.pop() if self._idle else None
        try:
            if socket is None:
                socket = self._connect()
            yield socket
        except BaseException:
            if socket is not None:
                socket.close()
            self._give_back(None)
            raise
        self._give_back(socket)

    def _give_back(self, socket: zmq.Socket[bytes] | None) -> None:
        """After a call; none: it is closed."""
        with self._lock:
            self._under_way -= 1
            last = self.closed and self._under_way == 0
            if socket is not None and not self.closed:
                self._idle.append(socket)
                return
        if socket is not None:
            socket.close()
        if last:
            self._context.term()

    def _connect(self) -> zmq.Socket[bytes]:
        socket: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        socket.set_hwm(HIGH_WATER)
        socket.linger = 0
        socket.maxmsgsize = MOST_FRAME_BYTES
        if self._secret is not None:
            secure_client(socket, self._secret)
        socket.connect(self.address)
        return socket


def _value(got: Got, frames: list[Any]) -> Bytes | None:
    """The one value asked for, checked once more: it has come a long way."""
    if got.there != [True] or len(frames) != 1:
        return None
    value = np.frombuffer(frames[0], np.uint8).copy()
    return value if got.crcs == [int(crc32c(value))] else None

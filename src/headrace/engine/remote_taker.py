"""RemoteTaker: the taking end of a hand-off from prompt engines in other processes.

One thread owns the socket, puts what comes together and wakes the engine's loop, which takes it. What is damaged, too
much, or from before this taker's time is an error of its own request or nothing at all; it never stops the engine.
"""

from __future__ import annotations

import logging
import math
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import msgspec
import zmq

from headrace.contract.errors import StoreError
from headrace.contract.handoff import Codec, HandedOver

from .bell import Bell
from .hand_over_wire import (
    MOST_BLOCKS,
    MOST_FRAME_BYTES,
    POLL_MS,
    SILENCE_S,
    Drop,
    Freed,
    Hello,
    Offer,
    Piece,
    ToTaker,
    Welcome,
)
from .local_hand_off import CAPACITY, PATIENCE_S
from .sockets import Secure, bind_router

log = logging.getLogger(__name__)

MOST_ENDS = 100_000  # names remembered of requests that may still be on their way


@dataclass(slots=True)
class _Giver:
    """One that speaks to us: since when it is silent, and what came ahead of which of its sequences."""

    heard_s: float
    pieces: dict[str, list[tuple[list[tuple[int, int]], Any]]] = field(default_factory=dict)


class RemoteTaker:
    """A TakingEnd that listens on ``address``; ``wake`` is called when something has come.

    Raises StoreError where the address cannot be listened on.
    """

    def __init__(
        self,
        address: str,
        codec: Codec,
        *,
        secure: Secure | None = None,
        capacity: int = CAPACITY,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.patience_s = patience_s
        self._moved_s = -math.inf
        self.recalls = False  # set by who has a store to recall from
        self.wake: Callable[[], None] = lambda: None
        self._codec, self._capacity = codec, capacity
        self._epoch = secrets.randbits(53)
        self._lock = threading.Lock()
        self._items: deque[tuple[bytes, HandedOver]] = deque()
        self._ends: dict[str, tuple[str, float]] = {}
        self._freed: deque[tuple[bytes, str]] = deque()
        self._came: dict[str, bytes] = {}  # offers, and whose; until their giver does not ask for them any more
        self._givers: dict[bytes, _Giver] = {}
        self._decoder = msgspec.msgpack.Decoder(ToTaker)
        self._encode = msgspec.msgpack.Encoder().encode
        self._bell = Bell()
        self._stopping = threading.Event()
        self._socket = bind_router(address, secure, most_bytes=MOST_FRAME_BYTES, keeps_names=True)
        self._thread = threading.Thread(target=self._run, name="headrace-taker", daemon=True)
        self._thread.start()

    # -- the engine's loop --------------------------------------------------------------------------------------

    def moved(self, now_s: float) -> None:
        self._moved_s = now_s

    def take(self) -> HandedOver | None:
        with self._lock:
            if not self._items:
                return None
            giver, item = self._items.popleft()
            self._freed.append((giver, item.request.request_id))
        self._bell.ring()
        return item

    def holds(self, request_id: str) -> bool:
        with self._lock:
            return any(item.request.request_id == request_id for _, item in self._items)

    def end_of(self, request_id: str) -> str | None:
        with self._lock:
            end = self._ends.pop(request_id, None)
        return None if end is None else end[0]

    def end_later(self, request_id: str, reason: str) -> None:
        """Remembered for as long as the sequence may be on its way."""
        now = time.monotonic()
        with self._lock:
            while self._ends and (len(self._ends) >= MOST_ENDS or next(iter(self._ends.values()))[1] < now):
                del self._ends[next(iter(self._ends))]
            self._ends.setdefault(request_id, (reason, now + 2 * self.patience_s))

    def close(self) -> list[HandedOver]:
        self._stopping.set()
        self._bell.ring()
        self._thread.join(5)
        with self._lock:
            left = [item for _, item in self._items]
            self._items.clear()
        return left

    # -- the socket's thread ------------------------------------------------------------------------------------

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._bell.fd, zmq.POLLIN)
        while not self._stopping.is_set():
            poller.poll(POLL_MS)
            self._bell.hush()
            while self._socket.poll(0):
                giver, header, *frames = self._socket.recv_multipart(copy=False)
                self._hear(giver.bytes, header.buffer, [frame.buffer for frame in frames])
            self._free()
            self._forget_silent()
        self._socket.close()
        self._bell.close()

    def _hear(self, giver: bytes, header: Any, frames: list[Any]) -> None:
        try:
            message = self._decoder.decode(header)
        except msgspec.MsgspecError as error:
            log.warning("a message of a prompt engine could not be read: %s", error)
            return
        now = time.monotonic()
        known = self._givers.setdefault(giver, _Giver(now))
        known.heard_s = now
        if isinstance(message, Hello):
            self._welcome(giver, known, message)
        elif isinstance(message, Drop):
            self._drop(giver, known, message.request_id)
        elif message.epoch != self._epoch:
            return  # it was meant for who listened here before
        elif isinstance(message, Piece):
            self._add(known, message, frames)
        else:
            self._receive(giver, known, message, frames)

    def _welcome(self, giver: bytes, known: _Giver, hello: Hello) -> None:
        """Answers, and repairs what a broken connection has swallowed: offers, drops, the news of what was taken."""
        for name in hello.drops:
            self._drop(giver, known, name)
        self._came = {name: whose for name, whose in self._came.items() if whose != giver or name in hello.offers}
        missing = [name for name in hello.offers if name not in self._came]
        with self._lock:
            here = {item.request.request_id for _, item in self._items}
            taken = [name for name in hello.offers if name in self._came and name not in here]
            self._freed += [(giver, name) for name in taken]
        still_s = known.heard_s - self._moved_s
        self._send(giver, Welcome(self._epoch, self._capacity, self.recalls, still_s, hello.number, missing))

    def _drop(self, giver: bytes, known: _Giver, name: str) -> None:
        """Its slot is free in any case: perhaps nothing of it is here any more."""
        known.pieces.pop(name, None)
        self._freed.append((giver, name))

    def _add(self, known: _Giver, message: Piece, frames: list[Any]) -> None:
        """Pieces beyond what was granted are not kept; their sequence will then lack them and end."""
        if message.request_id in known.pieces or len(known.pieces) < self._capacity:
            content = self._unpacked(message, frames)
            known.pieces.setdefault(message.request_id, []).append((message.places, content))

    def _receive(self, giver: bytes, known: _Giver, offer: Offer, frames: list[Any]) -> None:
        ahead = known.pieces.pop(offer.request.request_id, [])
        content: Future[Any] = Future()
        try:
            content.set_result(self._whole(offer, ahead, self._unpacked(offer, frames)))
        except Exception as error:  # of this request alone
            content.set_exception(error)
        item = HandedOver(
            offer.request,
            offer.output_ids,
            offer.num_cached_tokens,
            None,
            offer.blocks,
            content,
            time.monotonic() + min(offer.left_s, self.patience_s),
        )
        self._came[offer.request.request_id] = giver
        with self._lock:
            self._items.append((giver, item))
        self.wake()

    def _unpacked(self, message: Piece | Offer, frames: list[Any]) -> Any:
        """The content, or the error that takes its place."""
        if message.error is not None:
            return StoreError("hand-off", message.error)
        try:
            return self._codec.unpack(message.parts, frames)
        except Exception as error:  # of this request alone
            return error

    def _whole(self, offer: Offer, ahead: list[tuple[list[tuple[int, int]], Any]], rest: Any) -> Any:
        """The content of every block, in the order of ``blocks``, from what came ahead and what came with the offer."""
        if sum(map(len, offer.blocks)) > MOST_BLOCKS or len(offer.sent) != len(offer.blocks):
            raise StoreError("hand-off", "not a sequence's blocks")
        wanted = [(g, p) for g, group in enumerate(offer.blocks) for p, block in enumerate(group) if block]
        came = [*ahead, ([(g, p) for g, p in wanted if p >= offer.sent[g]], rest)]
        for _, content in came:
            if isinstance(content, Exception):
                raise content
        where = {place: (i, row) for i, (places, _) in enumerate(came) for row, place in enumerate(places)}
        missing = [place for place in wanted if place not in where]
        if missing:
            raise StoreError("hand-off", f"{len(missing)} of {len(wanted)} blocks did not come")
        if not ahead:
            return rest
        return self._codec.arrange([content for _, content in came], [where[place] for place in wanted])

    def _send(self, giver: bytes, message: Welcome | Freed) -> None:
        try:
            self._socket.send_multipart([giver, self._encode(message)], zmq.NOBLOCK)
        except zmq.ZMQError:
            log.warning("a prompt engine takes nothing")

    def _free(self) -> None:
        while self._freed:
            giver, name = self._freed.popleft()
            self._send(giver, Freed([name]))

    def _forget_silent(self) -> None:
        """What came ahead of sequences of a giver that is gone; and at last the giver."""
        now = time.monotonic()
        for giver, known in list(self._givers.items()):
            if known.heard_s < now - 2 * SILENCE_S:
                known.pieces.clear()
            if known.heard_s < now - 2 * self.patience_s - 2 * SILENCE_S:
                del self._givers[giver]
                self._came = {name: whose for name, whose in self._came.items() if whose != giver}

"""RemoteGiver: the giving end of a hand-off to a completion engine in another process.

Calls only queue; one thread owns the socket and sends in order, each message when its copy is there. While the other
side is silent the port is closed, so that no sequence is given to nobody; it opens again when the other side is back.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import zmq

from headrace.contract.handoff import Codec, HandedOver

from .bell import Bell
from .hand_over_wire import HELLO_S, POLL_MS, SILENCE_S, Drop, Freed, Hello, Offer, Piece, ToGiver
from .hand_over_wire import Welcome as WelcomeMessage
from .local_hand_off import PATIENCE_S
from .sockets import Secure, connect_dealer

log = logging.getLogger(__name__)

MOST_BARE = 64  # sequences without KV that were not taken yet


@dataclass(slots=True)
class _Outgoing:
    message: Piece | Offer | Drop
    content: Future[Any] | None = None
    item: HandedOver | None = None  # what is offered, without its KV


class RemoteGiver:
    """A GivingEnd over a socket to ``address``. ``secure`` gives the socket its keys, where there is a secret."""

    takes_ahead = True

    def __init__(
        self,
        address: str,
        codec: Codec,
        *,
        secure: Secure | None = None,
        patience_s: float = PATIENCE_S,
        silence_s: float = SILENCE_S,
    ) -> None:
        self.patience_s = patience_s
        self._codec, self._silence_s = codec, silence_s
        self._lock = threading.Lock()
        self._slots: set[str] = set()
        self._bare: set[str] = set()
        self._epoch = self._capacity = 0
        self._recalls = False
        self.moved_s = -math.inf
        self._heard_s: float | None = None
        self._outbox: deque[_Outgoing] = deque()
        self._hellos = 0
        self._offers: dict[str, tuple[HandedOver, int]] = {}  # sent, not answered yet; and the first Hello after it
        self._drops: set[str] = set()  # the same
        self._lost: deque[HandedOver] = deque()
        self._decoder = msgspec.msgpack.Decoder(ToGiver)
        self._encode = msgspec.msgpack.Encoder().encode
        self._bell = Bell()
        self._stopping = threading.Event()
        self._socket = connect_dealer(address, secure, keeps_name=True)
        self._thread = threading.Thread(target=self._run, name="headrace-giver", daemon=True)
        self._thread.start()

    # -- the engine's loop --------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """It has been there, and is silent now. One that has not come yet is waited for, as long as patience lasts."""
        return self._heard_s is not None and time.monotonic() - self._heard_s > self._silence_s

    def has_room_for(self, request_id: str) -> bool:
        return request_id in self._slots or len(self._slots) < self._capacity

    def send_ahead(self, request_id: str, places: Sequence[tuple[int, int]], content: Any) -> bool:
        epoch = self._take_slot(request_id)
        if epoch is None:
            return False
        self._post(_Outgoing(Piece(epoch, request_id, list(places), []), content))
        return True

    def drop(self, request_id: str) -> None:
        self._post(_Outgoing(Drop(request_id)))

    def offer(self, item: HandedOver) -> bool:
        epoch = self._take_slot(item.request.request_id)
        if epoch is None:
            return False
        blocks, sent = [list(group) for group in item.blocks], list(item.sent or [0] * len(item.blocks))
        message = Offer(epoch, item.request, item.output_ids, item.num_cached_tokens, blocks, sent, 0.0, [])
        self._post(_Outgoing(message, item.content, replace(item, blocks=(), content=None, sent=())))
        return True

    def offer_bare(self, item: HandedOver, why: str) -> bool:
        name = item.request.request_id
        with self._lock:
            if self.closed or not self._recalls or len(self._bare) >= MOST_BARE:
                return False
            self._bare.add(name)
            message = Offer(self._epoch, item.request, item.output_ids, item.num_cached_tokens, [], [], 0.0, [], why)
        self._post(_Outgoing(message, None, item))
        return True

    def take_lost(self) -> list[HandedOver]:
        with self._lock:
            lost = list(self._lost)
            self._lost.clear()
        return lost

    def _take_slot(self, request_id: str) -> int | None:
        with self._lock:
            if self.closed or not self.has_room_for(request_id):
                return None
            self._slots.add(request_id)
            return self._epoch

    def _post(self, outgoing: _Outgoing) -> None:
        with self._lock:
            self._outbox.append(outgoing)
        if outgoing.content is None:
            self._bell.ring()
        else:
            outgoing.content.add_done_callback(lambda _: self._bell.ring())

    # -- the socket's thread ------------------------------------------------------------------------------------

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._bell.fd, zmq.POLLIN)
        next_hello_s = 0.0
        while not self._stopping.is_set():
            if time.monotonic() >= next_hello_s:
                self._greet()
                next_hello_s = time.monotonic() + HELLO_S
            blocked = not self._send_ready()
            poller.poll(10 if blocked else POLL_MS)
            self._bell.hush()
            while self._socket.poll(0):
                self._hear(self._socket.recv())
        self._socket.close()
        self._bell.close()

    def _greet(self) -> None:
        self._hellos += 1
        self._send([self._encode(Hello(self._hellos, list(self._offers), list(self._drops)))])

    def _send(self, frames: list[Any]) -> bool:
        try:
            self._socket.send_multipart(frames, zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return False
        return True

    def _send_ready(self) -> bool:
        """Sends what can go, in order. False where the socket takes no more now."""
        while self._outbox and ((first := self._outbox[0]).content is None or first.content.done()):
            if not self._send(self._frames(first)):
                return False
            with self._lock:
                self._outbox.popleft()
            self._note_sent(first)
        return True

    def _note_sent(self, outgoing: _Outgoing) -> None:
        message = outgoing.message
        if isinstance(message, Drop):
            self._drops.add(message.request_id)
        elif outgoing.item is not None and isinstance(message, Offer) and message.epoch == self._epoch:
            self._offers[message.request.request_id] = outgoing.item, self._hellos + 1

    def _frames(self, outgoing: _Outgoing) -> list[Any]:
        message, frames = outgoing.message, list[Any]()
        if outgoing.content is not None and not isinstance(message, Drop):
            try:
                message.parts, frames = self._codec.pack(outgoing.content.result())
            except Exception as error:  # the taker has to end the request: it is nobody else's any more
                message.error = f"{type(error).__name__}: {error}"
        if isinstance(message, Offer) and outgoing.item is not None:
            message.left_s = outgoing.item.deadline_s - time.monotonic()
        return [self._encode(message), *frames]

    def _hear(self, data: bytes) -> None:
        try:
            message = self._decoder.decode(data)
        except msgspec.MsgspecError as error:
            log.warning("a message of the completion engine could not be read: %s", error)
            return
        with self._lock:
            self._heard_s = time.monotonic()
            if isinstance(message, Freed):
                for name in message.request_ids:
                    self._free(name)
            else:
                self._welcomed(message, self._heard_s)

    def _welcomed(self, message: WelcomeMessage, now_s: float) -> None:
        """With the lock held."""
        if message.epoch != self._epoch:  # a new taker: the sequences of the old one are gone with it
            for names in (self._slots, self._bare, self._drops):
                names.clear()
            self._offers.clear()
        for name in message.missing:
            item, first_hello = self._offers.get(name, (None, 0))
            if item is not None and first_hello <= message.number:  # else it was offered again meanwhile
                self._lost.append(item)
                self._free(name)
        self._epoch, self._capacity, self._recalls = message.epoch, message.capacity, message.recalls
        self.moved_s = now_s - message.still_s

    def _free(self, name: str) -> None:
        for names in (self._slots, self._bare, self._drops):
            names.discard(name)
        self._offers.pop(name, None)

    def leave(self) -> None:
        """Ends the thread; what was not sent yet stays unsent."""
        self._stopping.set()
        self._bell.ring()
        self._thread.join(5)

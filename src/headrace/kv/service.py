"""A service on a socket: one thread that owns it and answers one message after another (``wire.py``).

A message that is none of ours is refused or dropped; it never stops the service. What is answered is the heirs' to say.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from typing import Any

import msgspec
import zmq

from headrace.contract.errors import StoreError

from .secret import Doorman, secure_server
from .standing import refuse_taken
from .wire import MOST_FRAME_BYTES, Answer, Refused, Request

log = logging.getLogger("headrace.kv")

POLL_MS = 200
HIGH_WATER = 1000  # messages of a client that wait to be read
MOST_UNREAD = 8  # answers that a client has not taken, each up to a frame of values; it asks one thing at a time
LOOPBACK = ("tcp://127.0.0.1:", "tcp://[::1]:", "tcp://localhost:", "ipc://", "inproc://")

Frames = list[Any]


class Service:
    """``listen`` is a ZeroMQ address; beyond this machine a secret is needed. Raises StoreError."""

    def __init__(self, listen: str, secret: bytes | None = None) -> None:
        if secret is None and not listen.startswith(LOOPBACK):
            raise StoreError(listen, "needs a secret: without one only this machine may be listened on")
        refuse_taken(listen)
        self._counts: Counter[str] = Counter()
        self._decoder = msgspec.msgpack.Decoder(Request)
        self._encode = msgspec.msgpack.Encoder().encode
        self._context: zmq.Context[Any] = zmq.Context()
        self._doorman = None if secret is None else Doorman(self._context, secret)
        self._socket = self._bind(listen, secret)
        self._closing = threading.Event()

    def _answer(self, request: Request, payloads: list[bytes]) -> tuple[Answer, Frames]:
        """What is answered, and the payloads that follow."""
        raise NotImplementedError

    def _sweep(self) -> None:
        """After every message, and a few times a second."""

    def _close(self) -> None:
        """The last thing that is done."""

    def _bind(self, listen: str, secret: bytes | None) -> zmq.Socket[bytes]:
        socket: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        socket.rcvhwm, socket.sndhwm = HIGH_WATER, MOST_UNREAD
        socket.linger = 0
        socket.maxmsgsize = MOST_FRAME_BYTES
        if secret is not None and self._doorman is not None:
            secure_server(socket, secret)
            self._doorman.watch(socket)
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
        """Serves until ``stop``. Closes the socket."""
        try:
            while not self._closing.is_set():
                if self._socket.poll(POLL_MS):
                    self._serve(self._socket.recv_multipart())
                self._sweep()
        finally:
            self.close()

    def close(self) -> None:
        """For a service that does not run (any more). May be called twice."""
        self._socket.close()
        if self._doorman is not None:
            self._doorman.close()
        self._context.term()
        self._close()

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


def _number(header: bytes) -> int | None:
    """The number of a message that could not be read, to refuse it by."""
    try:
        number = msgspec.msgpack.decode(header)["number"]
    except (msgspec.MsgspecError, KeyError, TypeError):
        return None
    return number if isinstance(number, int) and number >= 0 else None

"""An engine that was started by itself and waits for a front: obeys one front at a time, and outlives it.

A front that has been silent for a while is gone: what it had asked for is ended, and another one may come. Deltas go to
the front that asked, never to the next one.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import msgspec
import zmq

from headrace.contract.result import TokenDelta

from .bell import Bell
from .child import Reporter, obey, refused
from .engine import Engine
from .lifecycle import EngineLoop
from .messages import POLL_MS, Close, Deltas, Failed, Greet, Poke, Profile, Ready, Stats, Submit, ToEngine, ToFront
from .profiling import Profiler
from .sockets import Secure, bind_router

log = logging.getLogger(__name__)

FRONT_SILENCE_S = 10.0
HIGH_WATER = 100_000  # messages a front may be behind


class StandingEngine:
    """``listen``: a ZeroMQ address. Raises StoreError where it cannot be listened on."""

    def __init__(
        self,
        engine: Engine,
        info: dict[str, Any],
        listen: str,
        *,
        secure: Secure | None = None,
        front_silence_s: float = FRONT_SILENCE_S,
    ) -> None:
        self._engine, self._info, self._silence_s = engine, info, front_silence_s
        self._front: bytes | None = None
        self._heard_s = 0.0
        self._open: set[str] = set()
        self._outbox: list[TokenDelta] = []
        self._lock = threading.Lock()
        self._bell = Bell()
        self._profiler = Profiler(self._bell.ring)
        self._encode = msgspec.msgpack.Encoder().encode
        self._decoder = msgspec.msgpack.Decoder(ToEngine)
        self._stopping = threading.Event()
        self._socket = bind_router(listen, secure, high_water=HIGH_WATER, linger_ms=1000)

    @property
    def address(self) -> str:
        """Where it listens; a port of 0 or * has become one."""
        return self._socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def stop(self) -> None:
        """From any thread, or from a signal's handler."""
        self._stopping.set()
        self._bell.ring()

    def run(self) -> str | None:
        """Serves until ``stop``, or until the engine dies; returns why it died."""
        loop = EngineLoop(self._engine, self._sink)
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._bell.fd, zmq.POLLIN)
        reporter = Reporter(self._engine)
        while loop.alive and not self._stopping.is_set():
            poller.poll(POLL_MS)
            self._bell.hush()
            if (stats := reporter.due()) is not None:
                self._tell(Stats(stats))
            self._tell_news()
            for profiled in self._profiler.due():
                self._tell(profiled)
            while self._socket.poll(0):
                self._hear(*self._socket.recv_multipart()[:2])
            if self._front is not None and time.monotonic() - self._heard_s > self._silence_s:
                log.warning("the front is gone; what it had asked for ends")
                self._part()
        loop.close()
        self._tell_news()
        self._socket.close()
        return None if loop.failure is None else str(loop.failure)

    def _sink(self, deltas: list[TokenDelta]) -> None:
        with self._lock:
            self._outbox += deltas
        self._bell.ring()

    def _tell_news(self) -> None:
        with self._lock:
            news, self._outbox = self._outbox, []
        for delta in news:
            if delta.finish_reason is not None:
                self._open.discard(delta.request_id)
            elif self._front is None:  # it was on its way here when the front went
                self._engine.abort(delta.request_id)
            else:
                self._open.add(delta.request_id)
        if news:
            self._tell(Deltas(news))

    def _tell(self, message: ToFront) -> None:
        if self._front is not None:
            self._send(self._front, message)

    def _send(self, front: bytes, message: ToFront) -> None:
        try:
            self._socket.send_multipart([front, self._encode(message)], zmq.NOBLOCK)
        except zmq.ZMQError:
            log.warning("the front takes nothing")

    def _hear(self, front: bytes, data: bytes) -> None:
        try:
            message = self._decoder.decode(data)
        except msgspec.MsgspecError as error:
            answer = refused(data, error)
            if answer is not None and front == self._front:
                self._tell(Deltas([answer]))
            return
        if isinstance(message, Greet):
            self._greet(front)
        if front != self._front:
            if not isinstance(message, Greet | Close):  # it speaks to whoever was here before, or has been given up
                self._send(front, Failed("the engine does not know this front; it was started again, or gave it up"))
            return
        self._heard_s = time.monotonic()
        if isinstance(message, Close):
            self._part()
        elif isinstance(message, Profile):
            self._profiler.begin(message)
        elif not isinstance(message, Greet | Poke):
            if isinstance(message, Submit):
                self._open.add(message.request.request_id)
            if (answer := obey(self._engine, message)) is not None:
                self._open.discard(answer.request_id)
                self._tell(Deltas([answer]))

    def _greet(self, front: bytes) -> None:
        if self._front is not None and front != self._front:
            self._send(front, Failed("another front is using this engine"))
            return
        self._front = front
        self._tell(Ready(self._info))

    def _part(self) -> None:
        """The front goes; nobody waits for what it had asked for, here or between the engines."""
        self._engine.intake.abandon()
        with self._lock:
            self._outbox.clear()
        self._open.clear()
        self._front = None

"""The front of an engine in a process of its own: starts it, speaks to it, notices when it is gone.

If the engine's process dies or stands still, every open request ends with an error delta; if the front dies, the
engine ends itself. The child builds its engine through a function it is given, so no composition root is needed here.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec
import zmq

from headrace.contract.errors import EngineDead, InvalidRequest
from headrace.contract.request import Request
from headrace.contract.stats import EngineStats

from .child import child_main
from .client import DeltaSink, Sinks
from .engine import Engine
from .lifecycle import EngineLoop
from .local_socket import address_in, make_folder, open_socket, remove_if_orphaned

START_TIMEOUT_S = 600.0  # loading a large model from a cold disk
CLOSE_TIMEOUT_S = 30.0
SILENCE_TIMEOUT_S = 60.0  # a child that is silent for so long is stopped or stuck
STATS_PERIOD_S = 0.1  # how old the front's picture of the engine may be


class Submit(msgspec.Struct, tag=True):
    request: Request


class End(msgspec.Struct, tag=True):
    request_id: str
    reason: str


class Close(msgspec.Struct, tag=True):
    pass


class Ready(msgspec.Struct, tag=True):
    info: dict[str, Any]


class Failed(msgspec.Struct, tag=True):
    message: str


class Deltas(msgspec.Struct, tag=True):
    deltas: list[TokenDelta]


class Stats(msgspec.Struct, tag=True):
    stats: EngineStats


ToEngine = Submit | End | Close
ToFront = Ready | Failed | Deltas | Stats
Builder = Callable[[Any], tuple[Engine, dict[str, Any]]]
"""Child side: from a picklable argument to an engine and facts for the front."""


# -- child ------------------------------------------------------------------------------------------------------


def _child_main(build: Builder, argument: Any, address: str, parent: int) -> None:
    """``engine_main``, and after it the socket's folder goes if nobody else is left to remove it."""
    try:
        engine_main(build, argument, address, parent)
    finally:
        remove_if_orphaned(address, parent)


def engine_main(build: Builder, argument: Any, address: str, parent: int) -> None:
    """Runs in the child until told to close or the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the front decides what ends
    socket = open_socket(address, bind=False)
    encode = msgspec.msgpack.Encoder().encode
    try:
        engine, info = build(argument)
    except Exception as error:
        socket.send(encode(Failed(str(error) if isinstance(error, HeadraceError) else repr(error))))
        return
    outbox: list[TokenDelta] = []
    lock = threading.Lock()
    wake, woken = _wake_pair()

    def sink(deltas: list[TokenDelta]) -> None:  # engine thread; the socket belongs to the main thread
        with lock:
            outbox.extend(deltas)
        with contextlib.suppress(zmq.Again):
            wake.send(b"", zmq.NOBLOCK)

    loop = EngineLoop(engine, sink)
    socket.send(encode(Ready(info)))
    _serve(engine, loop, socket, woken, parent, lambda: _take(outbox, lock))
    loop.close()
    if rest := _take(outbox, lock):
        socket.send(encode(Deltas(rest)))


def _wake_pair() -> tuple[zmq.Socket[bytes], zmq.Socket[bytes]]:
    context: zmq.Context[Any] = zmq.Context.instance()
    address = "inproc://deltas"
    woken = context.socket(zmq.PULL)
    woken.set_hwm(8)  # one pending wake-up is as good as many
    woken.bind(address)
    wake = context.socket(zmq.PUSH)
    wake.set_hwm(8)
    wake.connect(address)
    return wake, woken


def _take(outbox: list[TokenDelta], lock: threading.Lock) -> list[TokenDelta]:
    with lock:
        taken = list(outbox)
        outbox.clear()
    return taken


def _serve(
    engine: Engine,
    loop: EngineLoop,
    socket: zmq.Socket[bytes],
    woken: zmq.Socket[bytes],
    parent: int,
    take: Callable[[], list[TokenDelta]],
) -> None:
    decoder = msgspec.msgpack.Decoder(ToEngine)
    encode = msgspec.msgpack.Encoder().encode
    poller = zmq.Poller()
    poller.register(socket, zmq.POLLIN)
    poller.register(woken, zmq.POLLIN)
    reporter = _Reporter(engine)
    while loop.alive and os.getppid() == parent:
        ready = dict(poller.poll(POLL_MS))
        if (stats := reporter.due()) is not None:
            socket.send(encode(Stats(stats)))
        if woken in ready:
            woken.recv()
        if news := take():
            socket.send(encode(Deltas(news)))
        if socket not in ready:
            continue
        data = socket.recv()
        try:
            message = decoder.decode(data)
        except msgspec.MsgspecError as error:
            answer = _refused(data, error)
        else:
            if isinstance(message, Close):
                return
            answer = _obey(engine, message)
        if answer is not None:
            socket.send(encode(Deltas([answer])))


class _Reporter:
    """Says when the front should hear of the engine's state: when it changed, not too often."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._told: EngineStats | None = None
        self._next_s = 0.0

    def due(self) -> EngineStats | None:
        now, stats = time.monotonic(), self._engine.stats
        due = now >= self._next_s and (stats != self._told or now >= self._next_s + HEARTBEAT_S)
        if not due:
            return None
        self._told, self._next_s = stats, now + STATS_PERIOD_S
        return stats


def _refused(data: bytes, error: Exception) -> TokenDelta | None:
    """A message that is none of ours costs its own request, not the engine."""
    try:
        name = msgspec.msgpack.decode(data)["request"]["request_id"]
    except (msgspec.MsgspecError, KeyError, TypeError):
        return None
    return TokenDelta(request_id=name, finish_reason="error", error=str(error)) if isinstance(name, str) else None


def _obey(engine: Engine, message: Submit | End) -> TokenDelta | None:
    if isinstance(message, End):
        (engine.abort if message.reason == "abort" else engine.stop)(message.request_id)
        return None
    try:
        engine.submit(message.request)
    except HeadraceError as error:
        return TokenDelta(request_id=message.request.request_id, finish_reason="error", error=str(error))
    return None


# -- front ------------------------------------------------------------------------------------------------------


class ProcessClient:
    """Starts the child and waits until its engine is ready. Raises EngineDead with the child's reason if it is not.

    One thread owns the socket; callers reach it through a queue, so any thread may submit.
    """

    def __init__(
        self,
        build: Builder,
        argument: Any,
        *,
        start_timeout_s: float = START_TIMEOUT_S,
        silence_timeout_s: float = SILENCE_TIMEOUT_S,
    ) -> None:
        self._silence_timeout_s = silence_timeout_s
        self._folder = make_folder()
        address = address_in(self._folder.name)
        self._socket = open_socket(address, bind=True)
        self._process = multiprocessing.get_context("spawn").Process(
            target=child_main, args=(build, argument, address, os.getpid()), name="headrace-engine", daemon=True
        )
        self._process.start()
        self.info = self._await_ready(start_timeout_s)
        self._sinks = Sinks()
        self._closing = threading.Event()
        self._dead: str | None = None
        self._stats = EngineStats()
        self._inbox: list[bytes] = []
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="headrace-engine-client", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int | None:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._dead is None and self._process.is_alive()

    @property
    def stats(self) -> EngineStats:
        return self._stats if self.alive else EngineStats()

    def _await_ready(self, timeout_s: float) -> dict[str, Any]:
        decoder = msgspec.msgpack.Decoder(ToFront)
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self._socket.poll(POLL_MS):
                message = decoder.decode(self._socket.recv())
                if isinstance(message, Ready):
                    return message.info
                if isinstance(message, Failed):
                    self._discard()
                    raise EngineDead(f"the engine did not start: {message.message}")
            elif not self._process.is_alive():
                self._discard()
                raise EngineDead(
                    f"the engine process ended at start (exit code {self._process.exitcode}). A script that starts one "
                    'needs `if __name__ == "__main__":` around its work, and cannot be read from standard input'
                )
        self._discard()
        raise EngineDead(f"the engine was not ready within {timeout_s:g} s")

    def _discard(self) -> None:
        self._process.terminate()
        self._process.join(CLOSE_TIMEOUT_S)
        self._socket.close()
        self._folder.cleanup()

    def submit(self, request: Request, sink: DeltaSink) -> None:
        if self._dead is not None or self._closing.is_set():
            raise EngineDead(self._dead or "the client was closed")
        try:
            data = msgspec.msgpack.encode(Submit(request))
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidRequest("request", f"cannot be sent to the engine: {error}") from error
        self._sinks.add(request.request_id, sink)
        self._post(data)
        if self._dead is not None:  # it died meanwhile; its sweep may have come before our sink
            self._sinks.fail_all(self._dead)

    def abort(self, request_id: str) -> None:
        self._post(msgspec.msgpack.encode(End(request_id, "abort")))

    def stop(self, request_id: str) -> None:
        self._post(msgspec.msgpack.encode(End(request_id, "stop")))

    def _post(self, message: bytes) -> None:
        with self._lock:
            self._inbox.append(message)

    def _run(self) -> None:
        decoder = msgspec.msgpack.Decoder(ToFront)
        heard = time.monotonic()
        while not self._closing.is_set():
            with self._lock:
                outgoing, self._inbox = self._inbox, []
            for message in outgoing:
                self._socket.send(message)
            if self._socket.poll(1):
                heard = time.monotonic()
                self._take(decoder.decode(self._socket.recv()))
            elif not self._process.is_alive():
                return self._mourn(f"the engine process died (exit code {self._process.exitcode})")
            elif time.monotonic() - heard > self._silence_timeout_s:
                self._process.kill()
                return self._mourn(f"the engine process gave no sign of life for {self._silence_timeout_s:g} s")
        if self._process.is_alive():
            self._socket.send(msgspec.msgpack.encode(Close()))

    def _take(self, answer: ToFront) -> None:
        if isinstance(answer, Deltas):
            self._sinks.deliver(answer.deltas)
        elif isinstance(answer, Stats):
            self._stats = answer.stats

    def _mourn(self, why: str) -> None:
        """The child is gone: everybody who waits is told."""
        self._dead = why
        self._sinks.fail_all(why)

    def close(self) -> None:
        """Ends open requests and the child; the child is killed if it does not end by the deadline."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._thread.join(CLOSE_TIMEOUT_S)
        self._process.join(CLOSE_TIMEOUT_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join(CLOSE_TIMEOUT_S)
        self._sinks.fail_all("the engine was closed")
        self._socket.close()
        self._folder.cleanup()

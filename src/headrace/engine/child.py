"""The engine's own process: builds an engine, obeys the front, reports; ends when told, or when the front is gone."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import zmq

from headrace.contract.errors import HeadraceError, InvalidRequest
from headrace.contract.result import TokenDelta
from headrace.contract.stats import EngineStats

from .engine import Engine
from .lifecycle import EngineLoop
from .local_socket import folder_of, open_socket
from .messages import (
    POLL_MS,
    Builder,
    Close,
    Deltas,
    End,
    Failed,
    Greet,
    Lost,
    Poke,
    Profile,
    Ready,
    Stats,
    Submit,
    ToEngine,
)
from .orphans import leave, leave_signals_to_the_front, remove_if_orphaned, watching
from .profiling import Profiler

HEARTBEAT_S = 1.0  # it reports at least this often, busy or not
STATS_PERIOD_S = 0.1  # how old the front's picture of the engine may be


def child_main(build: Builder, argument: Any, address: str, parent: int, leftovers: Sequence[str] = ()) -> None:
    """``engine_main``, and after it the socket's folder and ``leftovers`` go if nobody else is left to remove them."""
    folders = [folder_of(address), *leftovers]

    def watched(given: Any) -> tuple[Engine, dict[str, Any]]:
        with watching(folders, parent):
            return build(given)

    try:
        told = engine_main(watched, argument, address, parent)
    finally:
        remove_if_orphaned(folders, parent)
    if told:
        leave()


def engine_main(build: Builder, argument: Any, address: str, parent: int) -> bool:
    """Runs in the child until told to close or the parent is gone. True when told: then nobody listens any more."""
    leave_signals_to_the_front()
    socket = open_socket(address, bind=False)
    encode = msgspec.msgpack.Encoder().encode
    try:
        engine, info = build(argument)
    except Exception as error:
        socket.send(encode(Failed.of(error)))
        return False
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
    told = _serve(engine, loop, socket, woken, parent, lambda: _take(outbox, lock))
    loop.close()
    if rest := _take(outbox, lock):
        socket.send(encode(Deltas(rest)))
    return told


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
) -> bool:
    """Whether it was told to close."""
    decoder = msgspec.msgpack.Decoder(ToEngine)
    encode = msgspec.msgpack.Encoder().encode
    poller = zmq.Poller()
    poller.register(socket, zmq.POLLIN)
    poller.register(woken, zmq.POLLIN)
    reporter, profiler = Reporter(engine), Profiler()
    while loop.alive and os.getppid() == parent:
        ready = dict(poller.poll(POLL_MS))
        if (stats := reporter.due()) is not None:
            socket.send(encode(Stats(stats)))
        for profiled in profiler.due():
            socket.send(encode(profiled))
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
            answer = refused(data, error)
        else:
            if isinstance(message, Close):
                return True
            if isinstance(message, Greet):
                continue
            if isinstance(message, Profile):
                profiler.begin(message)
                continue
            answer = obey(engine, message)
        if answer is not None:
            socket.send(encode(Deltas([answer])))
    return False


class Reporter:
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


def refused(data: bytes, error: Exception) -> TokenDelta | None:
    """A message that is none of ours costs its own request, not the engine."""
    try:
        name = msgspec.msgpack.decode(data)["request"]["request_id"]
    except (msgspec.MsgspecError, KeyError, TypeError):
        return None
    return TokenDelta(request_id=name, finish_reason="error", error=str(error)) if isinstance(name, str) else None


def obey(engine: Engine, message: Submit | End | Lost | Poke) -> TokenDelta | None:
    """Does what a front says; the last delta of a request that cannot be taken."""
    if isinstance(message, Poke):
        engine.intake.poke(2)
        return None
    if isinstance(message, End):
        engine.intake.end(message.request_id, message.reason)
        return None
    if isinstance(message, Lost):
        engine.intake.lose(message.request, message.output_ids)
        return None
    try:
        engine.submit(message.request)
    except HeadraceError as error:
        field = error.field if isinstance(error, InvalidRequest) else None
        name = message.request.request_id
        return TokenDelta(request_id=name, finish_reason="error", error=str(error), error_field=field)
    return None

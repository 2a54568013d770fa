"""The front of an engine in a process of its own: starts it, speaks to it, notices when it is gone.

If the engine's process dies or stands still, every open request ends with an error delta; if the front dies, the
engine ends itself. The child builds its engine through a function it is given, so no composition root is needed here.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import zmq

from headrace.contract.errors import EngineDead, InvalidRequest
from headrace.contract.request import Request
from headrace.contract.stats import EngineStats

from .bell import Bell
from .child import child_main
from .client import DeltaSink, Sinks
from .messages import (
    POLL_MS,
    Builder,
    Close,
    Deltas,
    End,
    Failed,
    Lost,
    Poke,
    Profiled,
    Ready,
    Stats,
    Submit,
    ToFront,
)
from .profiling import ProfileWaits
from .silence import Silence
from .sockets import sent
from .spawning import spawn
from .starting import Flag, ended_at_start

log = logging.getLogger(__name__)

START_TIMEOUT_S = 600.0  # loading a large model from a cold disk
CLOSE_TIMEOUT_S = 30.0
GRACE_S = 2.0  # for a child that is not needed after all to go by itself
SILENCE_TIMEOUT_S = 60.0  # a child that is silent for so long is stopped or stuck
LOOK_MS = 20  # how late the end of a process may be noticed


class ProcessClient:
    """Starts the child and waits until its engine is ready. Raises EngineDead with the child's reason if it is not.

    One thread owns the socket; callers reach it through a queue, so any thread may submit. ``give_up``: set by
    another thread when there is no sense in waiting for this engine any more. ``on_dead`` is called once with the
    reason when the child is gone though nobody closed it, after its requests were told. ``label``: which of several it
    is, for that reason. ``leftovers``: folders that the child removes where the front cannot any more.
    """

    def __init__(
        self,
        build: Builder,
        argument: Any,
        *,
        start_timeout_s: float = START_TIMEOUT_S,
        silence_timeout_s: float = SILENCE_TIMEOUT_S,
        give_up: Flag | None = None,
        on_dead: Callable[[str], None] | None = None,
        label: str = "",
        leftovers: Sequence[str] = (),
    ) -> None:
        self._label = f"{label}: " if label else ""
        try:
            child = spawn(child_main, "headrace-engine", build, argument, leftovers)
        except (OSError, zmq.ZMQError) as error:  # no descriptors, no memory, no room for temporary files
            raise EngineDead(f"the engine process cannot be started: {error}") from error
        self._folder, self._socket, self._process = child.folder, child.socket, child.process
        self._begin(start_timeout_s, silence_timeout_s, give_up, on_dead)

    def _begin(
        self,
        start_timeout_s: float,
        silence_timeout_s: float,
        give_up: Flag | None,
        on_dead: Callable[[str], None] | None,
    ) -> None:
        """Waits for the other side, then listens to it; where it does not come, nothing of it is left."""
        self._give_up = give_up or threading.Event()
        self._on_dead = on_dead
        self._sentence: str | None = None
        self._silence, self._silence_timeout_s = Silence(), silence_timeout_s
        try:
            self.info = self._await_ready(start_timeout_s)
        except BaseException as error:  # an interrupt, too
            self._discard()
            if isinstance(error, msgspec.MsgspecError | zmq.ZMQError):
                raise EngineDead(f"the engine cannot be understood: {error}") from error
            raise
        self._sinks = Sinks()
        self._profiles = ProfileWaits()
        self._closing = threading.Event()
        self._dead: str | None = None
        self._stats = EngineStats()
        self._inbox: list[bytes] = []
        self._lock = threading.Lock()
        self._bell = Bell()
        self._thread = threading.Thread(target=self._run, name="headrace-engine-client", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int | None:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._dead is None and self._process.is_alive()

    @property
    def ready(self) -> bool:
        return self.alive

    @property
    def stats(self) -> EngineStats:
        return self._stats if self.alive else EngineStats()

    def _await_ready(self, timeout_s: float) -> dict[str, Any]:
        decoder = msgspec.msgpack.Decoder(ToFront)
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and not self._give_up.is_set():
            if self._socket.poll(POLL_MS):
                message = decoder.decode(self._socket.recv())
                if isinstance(message, Ready):
                    return message.info
                if isinstance(message, Failed):
                    raise message.as_error("the engine did not start: ")
            elif not self._process.is_alive() and not self._socket.poll(POLL_MS):  # its last words may be under way
                raise EngineDead(ended_at_start("the engine process", self._process.exitcode))
        if self._give_up.is_set():
            raise EngineDead("the engine is not needed any more")
        raise EngineDead(f"the engine was not ready within {timeout_s:g} s")

    def _discard(self) -> None:
        """A child that is stopped, or does not hear, is killed."""
        self._process.terminate()
        self._process.join(GRACE_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join(CLOSE_TIMEOUT_S)
        self._put_away()

    def _put_away(self) -> None:
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

    def listen(self, request_id: str, sink: DeltaSink) -> None:
        """For the news of a request that comes to this engine from another one. Raises EngineDead, where ``sink`` has
        not heard of that."""
        if self._dead is not None or self._closing.is_set():
            raise EngineDead(self._dead or "the client was closed")
        self._sinks.add(request_id, sink)
        if self._dead is not None and self._sinks.drop(request_id):  # it died meanwhile; its sweep came before
            raise EngineDead(self._dead)

    def forget(self, request_id: str) -> None:
        """No news of this request is awaited from here any more."""
        self._sinks.drop(request_id)

    def lose(self, request: Request, output_ids: tuple[int, ...]) -> None:
        """Its giver died after it had reported these tokens: unless this engine has it, it goes on from the common
        store, or ends with an error."""
        self._post(msgspec.msgpack.encode(Lost(request, output_ids)))

    @property
    def dead(self) -> str | None:
        """Why it is gone though nobody closed it; its requests are being told, or were."""
        return self._dead

    @property
    def gone(self) -> str | None:
        """As ``dead``, but known as soon as its process has ended."""
        ended = self._dead is None and not self._closing.is_set() and not self._process.is_alive()
        return self._why_gone() if ended else self._dead

    def _why_gone(self) -> str:
        return self._sentence or f"{self._label}the engine process died (exit code {self._process.exitcode})"

    def poke(self) -> None:
        """Wakes the engine although it has nothing to do: another rank of its group has."""
        self._post(msgspec.msgpack.encode(Poke()))

    def profile(self, seconds: float) -> dict[str, dict[str, int]]:
        """Where the engine's process spends this time; waits for it. Raises EngineDead."""
        if not self.alive:
            raise EngineDead(self._dead or "the engine is gone")
        return {"engine": self._profiles.ask(seconds, lambda asked: self._post(msgspec.msgpack.encode(asked)))}

    def kill(self, why: str) -> None:
        """Ends the child at once; its open requests are told ``why``."""
        self._sentence = why
        self._process.kill()
        self._bell.ring()

    def _post(self, message: bytes) -> None:
        with self._lock:
            self._inbox.append(message)
        self._bell.ring()

    def _run(self) -> None:
        """Nobody may be left waiting, whatever ends this thread."""
        try:
            why = self._attend()
        except Exception as error:
            log.exception("an engine's front fails")
            self._process.kill()
            why = f"{self._label}the engine cannot be understood: {type(error).__name__}: {error}"
        if why is not None:
            self._mourn(why)

    def _attend(self) -> str | None:
        """Speaks to the child until it is told to close (None), or is gone: why."""
        decoder = msgspec.msgpack.Decoder(ToFront)
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._bell.fd, zmq.POLLIN)
        self._silence.heard()
        while not self._closing.is_set() and self._sentence is None:
            with self._lock:
                outgoing, self._inbox = self._inbox, []
            for message in outgoing:
                self._send(message)
            self._sign_of_life()
            ready = dict(poller.poll(LOOK_MS))
            self._bell.hush()
            if self._socket in ready:
                self._silence.heard()
                self._take(decoder.decode(self._socket.recv()))
            elif not self._process.is_alive():
                return self._why_gone()
            elif self._silence.look() > (patience_s := self._patience_s()):
                self._process.kill()
                silence = f"the engine process gave no sign of life for {patience_s:g} s"
                return self._label + silence
        if self._sentence is not None or not self._process.is_alive():  # it was gone before anybody closed it
            return self._why_gone()
        self._send(msgspec.msgpack.encode(Close()))
        return None

    def _patience_s(self) -> float:
        """How long it may be silent."""
        return self._silence_timeout_s

    def _sign_of_life(self) -> None:
        """A child sees by itself whether its front is there."""

    def _send(self, message: bytes) -> None:
        """A child that is gone takes nothing, and a plain send would wait for it for ever."""
        while self._process.is_alive() and self._silence.look() <= self._silence_timeout_s:
            if self._socket.poll(POLL_MS, zmq.POLLOUT) and sent(self._socket, message):
                return

    def _take(self, answer: ToFront) -> None:
        if isinstance(answer, Deltas):
            self._sinks.deliver(answer.deltas)
        elif isinstance(answer, Stats):
            self._stats = answer.stats
        elif isinstance(answer, Profiled):
            self._profiles.take(answer)

    def _mourn(self, why: str) -> None:
        """The child is gone: everybody who waits is told."""
        self._dead = why
        self._sinks.fail_all(why)
        self._profiles.fail_all(why)
        if self._on_dead is not None:
            self._on_dead(why)

    def close(self) -> None:
        """Ends open requests and the child; the child is killed if it does not end by the deadline."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._bell.ring()
        try:
            self._thread.join(CLOSE_TIMEOUT_S)
            self._process.join(CLOSE_TIMEOUT_S)
        finally:  # an interrupt, too: for a child that is stopped the interpreter would wait at its end, for ever
            self._leave_nothing()

    def _leave_nothing(self) -> None:
        if self._process.is_alive():
            self._process.kill()
            self._process.join(CLOSE_TIMEOUT_S)
        self._sinks.fail_all(self._dead or "the engine was closed")
        self._profiles.fail_all(self._dead or "the engine was closed")
        self._bell.close()
        self._put_away()

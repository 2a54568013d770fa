"""The front's side of an engine that somebody else started: the same doors as to a child, but it is not ours to end."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from typing import Any

import msgspec
import zmq

from headrace.contract.errors import EngineDead, StoreError

from .messages import POLL_MS, Close, Deltas, Failed, Greet, Poke, Ready, ToFront
from .process import ProcessClient
from .sockets import Line, Secure, connect_dealer, sent
from .starting import Flag

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 600.0
SILENCE_TIMEOUT_S = 10.0
CUT_OFF_TIMEOUT_S = 2.0  # without a connection: its process has ended, or is being started anew
PING_S = 1.0
REMIND_FIRST_S, REMIND_S = 5.0, 30.0  # of waiting: then who waits is told for whom, and again
REFUSED_FOR_S = 20.0  # longer than an engine takes to notice that its front is gone


class _Elsewhere:
    """Stands for a process that cannot be seen: alive until it is given up."""

    exitcode = pid = None

    def __init__(self) -> None:
        self._given_up = False

    def is_alive(self) -> bool:
        return not self._given_up

    def kill(self) -> None:
        self._given_up = True

    terminate = kill

    def join(self, timeout: float | None = None) -> None:
        """Nothing to wait for."""

    def cleanup(self) -> None:
        """Nothing lies anywhere."""


class Reminder:
    """When somebody who waits should be told so: after some seconds, then now and then."""

    def __init__(self, now: float) -> None:
        self._next = now + REMIND_FIRST_S

    def due(self, now: float) -> bool:
        if now < self._next:
            return False
        self._next = now + REMIND_S
        return True


class RemoteClient(ProcessClient):
    """Waits until the engine at ``address`` answers. Raises EngineDead when it does not, or serves another front.

    ``role``: what its user calls it, for messages.
    """

    def __init__(
        self,
        address: str,
        *,
        role: str = "",
        secure: Secure | None = None,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        silence_timeout_s: float = SILENCE_TIMEOUT_S,
        give_up: Flag | None = None,
        on_dead: Callable[[str], None] | None = None,
    ) -> None:
        self._address, self._label = address, ""
        self._called = f"the {role} engine at {address}" if role else f"the engine at {address}"
        self._next_ping_s = 0.0
        elsewhere: Any = _Elsewhere()
        self._process, self._folder = elsewhere, elsewhere
        try:
            self._socket = connect_dealer(address, secure)
        except (StoreError, zmq.ZMQError) as error:  # no descriptors, no memory, no such address
            raise EngineDead(f"{self._called} cannot be connected to: {error}") from error
        self._watch()
        self._begin(connect_timeout_s, silence_timeout_s, give_up, on_dead)

    def _watch(self) -> None:
        try:
            self._line = Line(self._socket)
        except zmq.ZMQError as error:
            self._socket.close()
            raise EngineDead(f"{self._called} cannot be watched: {error}") from error

    def _await_ready(self, timeout_s: float) -> dict[str, Any]:
        decoder = msgspec.msgpack.Decoder(ToFront)
        deadline = time.monotonic() + timeout_s
        reminder, reason = Reminder(time.monotonic()), "is it running, and is the secret the same?"
        why = f"{self._address}: no answer within {timeout_s:g} s (is it running, and is the secret the same?)"
        while time.monotonic() < deadline and not self._give_up.is_set():
            self._ping(Greet())
            self._line.cut()  # its news must be read: a full monitor stops all of the context's sockets
            if not self._socket.poll(POLL_MS):
                if reminder.due(time.monotonic()):
                    log.warning("still waiting for %s: %s", self._called, reason)
                continue
            message = decoder.decode(self._socket.recv())
            if isinstance(message, Ready):
                return message.info
            if isinstance(message, Failed):  # perhaps its front is dead, and it has yet to notice
                why = f"{self._address}: {message.message}"
                reason = message.message
                deadline = min(deadline, time.monotonic() + REFUSED_FOR_S)
        raise EngineDead("the engine is not needed any more" if self._give_up.is_set() else why)

    def _ping(self, message: Greet | Poke) -> None:
        if time.monotonic() >= self._next_ping_s:
            self._next_ping_s = time.monotonic() + PING_S
            sent(self._socket, msgspec.msgpack.encode(message))

    def _sign_of_life(self) -> None:
        self._ping(Poke())

    def _put_away(self) -> None:
        self._line.close()
        super()._put_away()

    def _patience_s(self) -> float:
        return min(CUT_OFF_TIMEOUT_S, self._silence_timeout_s) if self._line.cut() else self._silence_timeout_s

    def _take(self, answer: ToFront) -> None:
        if isinstance(answer, Failed):  # it does not know us: another process than before, or it had given us up
            self.kill(f"{self._address}: {answer.message}")
        if isinstance(answer, Deltas):  # of the front before, or of one that was given up here
            for name in self._sinks.unheard(answer.deltas):
                self.abort(name)
        super()._take(answer)

    def _mourn(self, why: str) -> None:
        """It may be alive after all: then it need not go on for us."""
        with contextlib.suppress(zmq.ZMQError):
            self._socket.send(msgspec.msgpack.encode(Close()), zmq.NOBLOCK)
        self._line.close()  # nobody reads it from here on, while the socket goes on connecting until it is put away
        super()._mourn(why)

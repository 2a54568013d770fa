"""EncoderProcess: the front of one encoder's process. Sends a picture, waits for its rows, notices when it is gone.

One life: a process that died or was silent for too long is never started again here, its successor is another
EncoderProcess. Used by one thread; only ``kill`` may come from any.
"""

from __future__ import annotations

import math
import threading
import time
from typing import Any, NoReturn

import msgspec
import zmq

from headrace.contract.errors import EngineDead, WorkerError
from headrace.contract.picture import Picture

from .encoder_child import EncoderBuilder, FromEncoder, Look, Seen, encoder_main
from .messages import POLL_MS, Close, Failed, Ready
from .sockets import sent
from .spawning import spawn
from .starting import Flag, ended_at_start

START_TIMEOUT_S = 600.0  # reading a large tower from a cold disk
CLOSE_TIMEOUT_S = 30.0


class EncoderProcess:
    """Starts the child and waits until it is ready. Raises EngineDead with the child's reason if it is not, or when
    ``give_up`` is set before."""

    def __init__(
        self,
        build: EncoderBuilder,
        argument: Any,
        *,
        start_timeout_s: float = START_TIMEOUT_S,
        give_up: Flag | None = None,
    ) -> None:
        self._number, self._given_up = 0, False
        self._decoder = msgspec.msgpack.Decoder(FromEncoder)
        try:
            child = spawn(encoder_main, "headrace-encoder", build, argument)
        except (OSError, zmq.ZMQError) as error:  # no descriptors, no memory, no room for temporary files
            raise EngineDead(f"its process cannot be started: {error}") from error
        self._folder, self._socket, self._process = child.folder, child.socket, child.process
        try:
            self._await_ready(time.monotonic() + start_timeout_s, give_up or threading.Event())
        except BaseException:  # an interrupt, too
            self.kill()
            self.close()
            raise

    @property
    def pid(self) -> int | None:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return not self._given_up and self._process.is_alive()

    def rows(self, picture: Picture, timeout_s: float) -> bytes:
        """Float32 (kinds, hidden) as bytes; waits for them.

        Raises WorkerError when this picture cannot be encoded, TimeoutError when it took too long (the process is then
        killed), EngineDead when the process died."""
        self._number += 1
        deadline = time.monotonic() + timeout_s
        if not self._send(Look(self._number, picture), deadline):
            self._give_up_on_it(timeout_s)
        answer = self._receive(deadline)
        if answer is None:
            self._give_up_on_it(timeout_s)
        if not isinstance(answer, Seen) or answer.number != self._number:
            self._given_up = True
            self.kill()
            raise EngineDead("its process answered out of turn")
        if answer.error is not None:
            raise WorkerError(answer.error)
        return answer.rows

    def _give_up_on_it(self, timeout_s: float) -> NoReturn:
        self._given_up = True  # killed, it may still look alive for a moment
        self.kill()
        raise TimeoutError(f"it gave no answer within {timeout_s:g} s")

    def _send(self, message: Look, deadline: float) -> bool:
        """A child that is gone takes nothing, and a plain send would wait for it for ever."""
        data = msgspec.msgpack.encode(message)
        while time.monotonic() < deadline:
            if self._socket.poll(_wait_ms(deadline), zmq.POLLOUT) and sent(self._socket, data):
                return True
            self._require_alive()
        return False

    def _receive(self, deadline: float) -> Ready | Failed | Seen | None:
        """The next answer; None at the deadline."""
        while time.monotonic() < deadline:
            alive = self._process.is_alive()  # asked first: what it sent before it died counts
            if self._socket.poll(_wait_ms(deadline) if alive else 0):
                return self._decoded(self._socket.recv())
            if not alive:
                self._require_alive()
        return None

    def _decoded(self, data: bytes) -> Ready | Failed | Seen:
        try:
            return self._decoder.decode(data)
        except msgspec.MsgspecError as error:
            self._given_up = True
            self.kill()
            raise EngineDead(f"its process cannot be understood: {error}") from error

    def _require_alive(self) -> None:
        if not self._process.is_alive():
            raise EngineDead(f"its process died (exit code {self._process.exitcode})")

    def _await_ready(self, deadline: float, give_up: Flag) -> None:
        while time.monotonic() < deadline and not give_up.is_set():
            try:
                answer = self._receive(min(deadline, time.monotonic() + POLL_MS / 1000))
            except EngineDead:
                if self._given_up:
                    raise
                raise EngineDead(ended_at_start("its process", self._process.exitcode)) from None
            if isinstance(answer, Failed):
                raise answer.as_error()
            if answer is not None:
                return
        raise EngineDead("it is not needed any more" if give_up.is_set() else "it was not ready in time")

    def kill(self) -> None:
        """Ends the child at once; who waits for it is told."""
        self._process.kill()

    def close(self) -> None:
        """Ends the child; it is killed if it does not end by the deadline."""
        if self._process.is_alive() and sent(self._socket, msgspec.msgpack.encode(Close())):
            self._process.join(CLOSE_TIMEOUT_S)
        if self._process.is_alive():
            self._process.kill()
        self._process.join(CLOSE_TIMEOUT_S)
        self._socket.close()
        self._folder.cleanup()


def _wait_ms(deadline: float) -> int:
    """As long as nobody looks whether the child lives, and no longer than the deadline."""
    return min(POLL_MS, max(0, math.ceil((deadline - time.monotonic()) * 1000)))

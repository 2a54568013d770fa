"""FetchProcess: the engine's side of one process that fetches: asks it, copies out what it filled, sees it die.

One life: its successor is another FetchProcess with a ring of its own, so nothing the dead one wrote can be taken for
an answer. The child is a plain Python process on one end of a socket pair: an engine that is a daemon may start it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from multiprocessing.connection import Connection
from typing import Any

import msgspec

from headrace.contract.errors import StoreError
from headrace.contract.ports import Bytes

from .fetch_wire import Begin, Cancel, Close, Failed, Fetch, Fetched, Free, FromFetcher, Opened, ToFetcher
from .opening import Errand
from .reading import Wanted
from .ring import RingReader, RingShape, Slot
from .shared import SharedMemory

START_TIMEOUT_S = 60.0
CLOSE_TIMEOUT_S = 5.0
POLL_S = 1.0  # between two signs that slots are still wanted
SILENT_S = 3.0  # a child gives a sign twice a second
MOST_ASKED = 64  # unanswered, all fetches together: some two hundred messages fill the socket of a child that is stuck
SEND_TIMEOUT_S = 1  # then it was full all the same
COMMAND = "from headrace.kv.fetch_child import fetch_main; fetch_main({})"


class Asked:
    """A value that was asked for."""

    def __init__(self, number: int, name: Wanted) -> None:
        self.number, self.name = number, name
        self.answer: Future[Slot | None] = Future()
        self.dropped = False


class FetchProcess:
    """Starts the child; ``wait_opened`` before anything is asked. Raises StoreError when it cannot be started.

    Thread-safe, but ``serve`` belongs to one thread.
    """

    def __init__(self, errand: Errand, shape: RingShape, silent_s: float = SILENT_S) -> None:
        """``silent_s``: a child without a sign for so long is ended when somebody waits for it in vain."""
        self._where, self._shared = errand.place, SharedMemory(shape.total_bytes)
        self._ring = RingReader(shape, self._shared.memory)
        self._lock, self._sending = threading.Lock(), threading.Lock()
        self._asked: dict[int, Asked] = {}
        self._held: set[Slot] = set()  # filled for us and not given back
        self._number, self._over = 0, False
        self._silent_s, self._heard = silent_s, time.monotonic()
        try:
            self._process, self._pipe = _start()
        except OSError as error:
            self._shared.forget_name()
            raise StoreError(errand.place, f"no process can be started to fetch: {error}") from error
        self._say(Begin(errand.reading(), str(self._shared.path), shape.num_slots, shape.slot_bytes, os.getpid()))

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return not self._over

    def wait_opened(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Until the child has opened the store. Raises StoreError with its reason; it is then gone."""
        try:
            answer = self._receive() if self._pipe.poll(timeout_s) else Failed(f"not ready within {timeout_s:g} s")
        except (EOFError, OSError):
            answer = Failed("it ended at start")
        if not isinstance(answer, Opened):
            self.kill()
            self.close()
            words = answer.message if isinstance(answer, Failed) else "it spoke out of turn"
            raise StoreError(self._where, f"the process that fetches: {words}")
        self._shared.forget_name()

    # -- asking -------------------------------------------------------------------------------------------------

    def ask(self, lease: int, name: Wanted, deadline: float) -> Asked:
        """Its answer comes before long; at once, a miss, where the process is gone or far behind."""
        with self._lock:
            self._number += 1
            asked = Asked(self._number, name)
            if self._over or len(self._asked) >= MOST_ASKED:
                asked.answer.set_result(None)
                return asked
            self._asked[asked.number] = asked
        self._say(Fetch(asked.number, os.getpid(), lease, name.key, name.kind, name.length, deadline))
        return asked

    def value(self, asked: Asked, deadline: float) -> Bytes | None:
        """Waits for the value and copies it out; None is a miss."""
        try:
            slot = asked.answer.result(max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            self.cancel(asked)
            if time.monotonic() - self._heard > self._silent_s:
                self.kill()
            return None
        if slot is None:
            return None
        value = self._ring.copy(slot)
        self._give_back(slot)
        return value

    def cancel(self, asked: Asked) -> None:
        """Its value is not wanted any more: a slot it has, or gets, is given back."""
        with self._lock:
            asked.dropped = True
            slot = asked.answer.result() if asked.answer.done() else None
        if slot is not None:
            self._give_back(slot)
        elif not asked.answer.done():
            self._say(Cancel(asked.number))

    def _give_back(self, slot: Slot) -> None:
        with self._lock:
            if slot not in self._held:
                return
            self._held.remove(slot)
        self._say(Free(slot.number, slot.generation))

    def _say(self, message: ToFetcher) -> None:
        """A child that takes nothing is gone or stuck, and may have half a message: it is ended, ``serve`` sees it."""
        try:
            with self._sending:
                self._pipe.send_bytes(msgspec.msgpack.encode(message))
        except OSError:
            self.kill()

    # -- hearing ------------------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Takes answers until the child is gone; then every open question is a miss."""
        beaten = time.monotonic()
        with contextlib.suppress(EOFError, OSError, msgspec.MsgspecError):
            while True:
                if self._pipe.poll(POLL_S):
                    message = self._receive()
                    if isinstance(message, Fetched):
                        self._take(message)
                if time.monotonic() - beaten >= POLL_S:
                    self._beat()
                    beaten = time.monotonic()
        self.kill()
        with self._lock:
            self._over = True
            left, self._asked = list(self._asked.values()), {}
            self._held.clear()
        for asked in left:
            asked.answer.set_result(None)

    def _receive(self) -> FromFetcher:
        message: FromFetcher = msgspec.msgpack.decode(self._pipe.recv_bytes(), type=FromFetcher)
        self._heard = time.monotonic()
        return message

    def _take(self, message: Fetched) -> None:
        with self._lock:
            asked = self._asked.pop(message.number, None)
            slot = None
            if asked is not None and message.slot >= 0:
                slot = Slot(message.slot, message.generation, asked.name.length)
                self._held.add(slot)
            dropped = asked is None or asked.dropped
            if asked is not None:
                asked.answer.set_result(slot)
        if dropped and slot is not None:
            self._give_back(slot)

    def _beat(self) -> None:
        with self._lock:
            held = list(self._held)
        for slot in held:
            self._ring.beat(slot)

    # -- ending -------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Tells the child to end; ``serve`` returns when it has."""
        self._say(Close())

    def kill(self) -> None:
        """Ends the child at once; who waits for it takes a miss."""
        self._process.kill()

    def close(self) -> None:
        """After its end: nothing of it stays."""
        with contextlib.suppress(subprocess.TimeoutExpired):  # killed, but a disk does not let go of it
            self._process.wait(CLOSE_TIMEOUT_S)
        with self._sending:
            self._pipe.close()
        self._shared.forget_name()


def _start() -> tuple[subprocess.Popen[bytes], Connection[Any, Any]]:
    """The child, and our end of the pair."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [sys.executable, "-c", COMMAND.format(theirs.fileno())]
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND_TIMEOUT_S, 0))
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        return process, Connection(ours.detach())

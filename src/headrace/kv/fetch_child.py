"""The process that fetches for an engine: opens the same store, reads and checks values, puts them into the ring.

It keeps nothing, stores nothing, and ends when told or when its engine is gone, whatever its threads wait for.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from headrace.contract.errors import HeadraceError

from .connector import FETCH_THREADS, Store
from .fetch_wire import Alive, Begin, Cancel, Close, Failed, Fetch, Fetched, Free, FromFetcher, Opened, ToFetcher
from .opening import open_store_at
from .ring import RingShape, RingWriter, Slot
from .shared import map_shared

POLL_S = 0.5  # between two looks for the parent, two sweeps, two signs of life
MOST_QUEUED = 4096  # the engine asks for far fewer at a time


def fetch_main(descriptor: int) -> NoReturn:
    """Runs in the child, on its end of a socket pair. Ends the process: its threads may be waiting for a disk."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the engine decides what ends
    pipe: Connection[Any, Any] = Connection(descriptor)
    with contextlib.suppress(EOFError, OSError):
        begin = msgspec.msgpack.decode(pipe.recv_bytes(), type=Begin)
        try:
            child = FetchChild(pipe, begin)
        except Exception as error:
            words = str(error) if isinstance(error, HeadraceError) else repr(error)
            pipe.send_bytes(msgspec.msgpack.encode(Failed(words)))
        else:
            child.serve()
    os._exit(0)


class FetchChild:
    """``serve`` belongs to the main thread; values are read by others. Raises StoreError."""

    def __init__(self, pipe: Connection[Any, Any], begin: Begin) -> None:
        shape = RingShape(begin.num_slots, begin.slot_bytes)
        self._ring = RingWriter(shape, map_shared(Path(begin.ring), shape.total_bytes), _alive)
        self._store: Store = open_store_at(begin.errand)
        self._pipe, self._parent = pipe, begin.parent
        self._sending = threading.Lock()
        self._queue: queue.Queue[Fetch] = queue.Queue(MOST_QUEUED)
        self._wanted: set[int] = set()  # queued or being read, and not cancelled

    def serve(self) -> None:
        """Until told to end, or the engine is gone."""
        for number in range(FETCH_THREADS):
            threading.Thread(target=self._work, name=f"headrace-kv-read-{number}", daemon=True).start()
        self._say(Opened())
        decoder = msgspec.msgpack.Decoder(ToFetcher)
        swept = time.monotonic()
        while os.getppid() == self._parent:
            if self._pipe.poll(POLL_S):
                message = decoder.decode(self._pipe.recv_bytes())
                if isinstance(message, Close):
                    self._store.close()
                    return
                self._obey(message)
            if time.monotonic() - swept >= POLL_S:
                self._ring.sweep()
                self._say(Alive())
                swept = time.monotonic()

    def _obey(self, message: ToFetcher) -> None:
        if isinstance(message, Free):
            self._ring.free(message.slot, message.generation)
        elif isinstance(message, Cancel):
            self._wanted.discard(message.number)
        elif isinstance(message, Fetch):
            self._wanted.add(message.number)
            try:
                self._queue.put_nowait(message)
            except queue.Full:
                self._answer(message, None)

    def _work(self) -> None:
        while True:
            asked = self._queue.get()
            slot = None
            with contextlib.suppress(Exception):  # a miss; the store itself counts and tells
                slot = self._fetched(asked)
            with contextlib.suppress(OSError):  # the engine is gone: the main thread sees it too
                self._answer(asked, slot)

    def _fetched(self, asked: Fetch) -> Slot | None:
        """The slot that now holds the value; None is a miss."""
        if not self._is_wanted(asked):
            return None
        value = self._store.get_leased(asked.lease, asked.key, asked.kind)
        if value is None or len(value) != asked.length or not self._is_wanted(asked):
            return None
        slot = self._ring.claim(asked.owner, asked.length, asked.deadline)
        if slot is not None:
            self._ring.fill(slot, value)
        return slot

    def _is_wanted(self, asked: Fetch) -> bool:
        return asked.number in self._wanted and time.monotonic() < asked.deadline

    def _answer(self, asked: Fetch, slot: Slot | None) -> None:
        self._wanted.discard(asked.number)
        answer = Fetched(asked.number)
        self._say(answer if slot is None else Fetched(asked.number, slot.number, slot.generation))

    def _say(self, message: FromFetcher) -> None:
        with self._sending:
            self._pipe.send_bytes(msgspec.msgpack.encode(message))


def _alive(process: int) -> bool:
    """Whether there is such a process; one that may not be asked is."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True

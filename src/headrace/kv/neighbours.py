"""Engines that hold values in their memory: finds them through a directory, reads from them, and is one of them.

A directory's word is no promise: before anything is said to be there, its holder is asked. Every wait ends after a
second; an engine that did not answer is forgotten by the directory and left alone for a while.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from headrace.contract.ports import Bytes

from .backend import Name
from .client import RemoteStore
from .host_memory import HostMemory
from .segment import checksum
from .service import Frames, Service
from .wire import MOST_ITEMS, Answer, Get, Got, Has, Held, Refused, Request, that_fit

TIMEOUT_S = 1.0
FIND_TIMEOUT_S = 2.0  # after which no further engine is asked
CLOSE_TIMEOUT_S = 5.0
MOST_ENGINES = 32  # connections kept, the latest
MOST_ASKED = 4  # engines that one look-up waits for
MOST_SEEN = 1 << 14  # values whose holders are remembered between a look-up and the read
NO_LEASE = 0


class MemoryServer(Service):
    """Gives others what is in this engine's memory, whole or not at all. There are no leases: what goes is a miss."""

    def __init__(self, memory: HostMemory, listen: str, secret: bytes | None = None) -> None:
        super().__init__(listen, secret)
        self._memory = memory

    def _answer(self, request: Request, payloads: list[bytes]) -> tuple[Answer, Frames]:
        del payloads  # nothing is taken
        match request:
            case Has():
                return Held(number=request.number, held=self._memory.has(request.names)), []
            case Get(ranges=None):
                values = [self._memory.get(*name) for name in request.names]
                fit = that_fit([0 if value is None else len(value) for value in values])
                values = [value if fits else None for value, fits in zip(values, fit)]
                frames = [value.data for value in values if value is not None]
                crcs = [checksum(value) for value in values if value is not None]
                return Got(number=request.number, there=[value is not None for value in values], crcs=crcs), frames
        return Refused(number=request.number, reason="an engine's memory is only asked what it has"), []


class Neighbours:
    """``directory``: a store server's address; ``listen``: where this engine's memory is served, 0 or * any port.

    ``num_told``: values that the directory said an engine holds and that were asked of it; ``num_held``: those it had.
    ``timeout_s`` is for the directory's answers, ``engine_timeout_s`` for other engines'. Thread-safe. Raises
    StoreError where ``listen`` cannot be listened on.
    """

    def __init__(
        self,
        memory: HostMemory,
        directory: str,
        listen: str,
        *,
        secret: bytes | None = None,
        timeout_s: float = TIMEOUT_S,
        engine_timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._server = MemoryServer(memory, listen, secret)
        self.address = self._server.address
        self._settings: dict[str, Any] = {"secret": secret, "timeout_s": engine_timeout_s}
        self._directory = RemoteStore(directory, secret=secret, timeout_s=timeout_s)
        self._engines: OrderedDict[str, RemoteStore] = OrderedDict()
        self._seen: OrderedDict[Name, str] = OrderedDict()
        self._lock, self._closed = threading.Lock(), False
        self.num_told = self.num_held = 0
        self._thread = threading.Thread(target=self._server.run, name="headrace-kv-memory", daemon=True)
        self._thread.start()

    def announce(self, name: Name) -> None:
        """This engine holds a value; for threads that nobody waits for."""
        self._directory.announce(self.address, [name])

    def find(self, names: Sequence[Name]) -> set[Name]:
        """Which of these another engine has just said that it holds; of many, the last ones."""
        names = names[-MOST_ITEMS:]
        by_engine: dict[str, list[Name]] = {}
        for name, holders in zip(names, self._directory.find(names) if names else []):
            for holder in holders:
                if holder != self.address:
                    by_engine.setdefault(holder, []).append(name)
        found: set[Name] = set()
        deadline = time.monotonic() + FIND_TIMEOUT_S
        most_first = sorted(by_engine.items(), key=lambda item: -len(item[1]))
        for asked, (address, told) in enumerate(most_first[:MOST_ASKED]):
            lacking = [name for name in told if name not in found]
            if lacking and (asked == 0 or time.monotonic() < deadline):
                found |= set(self._held_by(address, lacking))
        return found

    def _held_by(self, address: str, names: list[Name]) -> list[Name]:
        engine = self._engine(address)
        held = engine.has(names)
        if engine.silent:
            self._directory.withdraw(address)
        there = [name for name, here in zip(names, held) if here]
        with self._lock:
            self.num_told += len(names)
            self.num_held += len(there)
            self._seen |= dict.fromkeys(there, address)
            while len(self._seen) > MOST_SEEN:
                self._seen.popitem(last=False)
        return there

    def get(self, key: bytes, kind: int) -> Bytes | None:
        """A value from the engine that ``find`` saw it at; checked."""
        with self._lock:
            address = self._seen.pop((key, kind), None)
        return None if address is None else self._engine(address).get_leased(NO_LEASE, key, kind)

    def _engine(self, address: str) -> RemoteStore:
        with self._lock:
            engine = self._engines.pop(address, None) or RemoteStore(address, **self._settings)
            self._engines[address] = engine
            old = self._engines.popitem(last=False)[1] if len(self._engines) > MOST_ENGINES else None
            if self._closed:
                engine.close()  # whoever still asks has a miss
        if old is not None:
            old.close()
        return engine

    def close(self) -> None:
        """Nobody is told of this engine's memory any more."""
        self._directory.withdraw(self.address)
        self._server.stop()
        self._thread.join(CLOSE_TIMEOUT_S)
        with self._lock:
            self._closed, engines = True, list(self._engines.values())
        for store in (self._directory, *engines):
            store.close()

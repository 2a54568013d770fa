"""The engine's connector to a store on this machine: fetches on threads of its own, saves on another.

It opens the store in the background, so that an engine's start does not wait for it. A fetch answers within a deadline,
whatever the disk does; what it answers is in memory and checked. A save that finds no room is dropped and counted.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Protocol

from headrace.contract.errors import reason
from headrace.contract.ports import BlockMover, Bytes
from headrace.contract.request import CHAT, KVClass

from .ages import BY_NAME
from .budget import Budget
from .guarded import Guarded
from .health import Health
from .keys import tenant_tag
from .reading import DirectReader, Reader
from .records import RecordSpec, StoreMatch
from .saver import Grain, Saver
from .session import StoreSession

log = logging.getLogger("headrace.kv")

FETCH_THREADS = 2
FETCH_BYTES = 1 << 30  # fetched and not yet loaded, all sequences together
FETCH_TIMEOUT_S = 5.0
OPEN_WAIT_S = 2.0  # at the end, for a store that is still being opened


class Store(Protocol):
    """What the connector needs of a store; no call raises."""

    @property
    def fast_lookups(self) -> bool:
        """Whether ``has`` may be asked on the loop's thread."""
        ...

    def match(self, keys: Sequence[bytes], specs: Sequence[RecordSpec], again: bool = False) -> StoreMatch: ...
    def get_leased(self, lease: int, key: bytes, kind: int) -> Bytes | None: ...
    def release(self, lease: int) -> None: ...
    def has(self, keys: Sequence[tuple[bytes, int]]) -> list[bool]: ...
    def put(
        self, key: bytes, kind: int, payload: Bytes, *, tenant: bytes, depth: int, turn: int, ttl_class: int
    ) -> bool: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class OpenStore:
    """A store and the namespace of this engine's model in it (32 bytes). ``elsewhere``: a server that may be gone; it
    is asked something at once, so that whoever named it hears of that at the start. ``fetcher``: who reads instead of
    the fetch threads themselves. ``counts``: of what lies before the store. ``place``: what messages call it."""

    store: Store
    name_space: bytes
    elsewhere: bool = False
    fetcher: Reader | None = None
    counts: Callable[[], dict[str, int]] = dict
    place: str = "its place"

    @property
    def reader(self) -> Reader:
        return self.fetcher or DirectReader(self.store)

    def close(self) -> None:
        try:
            if self.fetcher is not None:
                self.fetcher.close()
        finally:
            self.store.close()


@dataclass(slots=True)
class ConnectorCounts:
    """``hit_tokens`` were offered to sequences; ``late``: fetches past a deadline, or not begun for a
    store that hangs; ``dropped``: grains not saved."""

    asked: int = 0
    hit_tokens: int = 0
    late: int = 0
    no_memory: int = 0
    saved: int = 0
    dropped: int = 0


class StoreConnector:
    """A KVConnector. ``open_store`` is called once, on a thread; an error from it turns the connector off."""

    def __init__(
        self,
        open_store: Callable[[], OpenStore],
        specs: Sequence[RecordSpec],
        mover: BlockMover,
        *,
        fetch_timeout_s: float = FETCH_TIMEOUT_S,
        fetch_bytes: int = FETCH_BYTES,
    ) -> None:
        self.specs, self.mover = tuple(specs), mover
        self.fetch_timeout_s = fetch_timeout_s
        self.budget = Budget(fetch_bytes)
        self.tally = ConnectorCounts()
        self.health = Health("its place")
        self.opened: OpenStore | None = None
        self.off = False
        self._ready = threading.Event()
        self._saver: Saver | None = None
        self._threads = ThreadPoolExecutor(FETCH_THREADS, thread_name_prefix="headrace-kv")
        self._lock = threading.Lock()
        self._closed = self._opens_slowly = False
        self._at_work: dict[StoreSession, float] = {}  # by a fetch thread each, and until when
        # Not one of the pool's: reading a large model's files may take minutes, and nobody waits for it at the end.
        threading.Thread(target=self._open, args=(open_store,), name="headrace-kv-open", daemon=True).start()

    def _open(self, open_store: Callable[[], OpenStore]) -> None:
        try:
            opened = open_store()
            self.health = Health(opened.place)
            self._take(replace(opened, store=Guarded(opened.store, self.health)))
        except Exception as error:  # whatever it is: prompts are computed, and nobody waits for a store
            self.disable(reason(error))
        finally:
            self._ready.set()

    def _take(self, opened: OpenStore) -> None:
        try:
            with self._lock:
                if not self._closed:
                    self._saver = Saver(opened.store, self.specs, self.mover, self.tally)
                    self.opened = opened
                    if opened.elsewhere:
                        self._threads.submit(opened.store.has, [])  # the store itself says what is wrong
        finally:
            if self.opened is None:  # the engine is gone already, or the saver could not begin
                opened.close()

    def wait_opened(self, timeout_s: float) -> OpenStore | None:
        """The store, once it is open; None when it is not within the time, or never will be. For fetch threads."""
        if not self._ready.wait(timeout_s):
            self._opens_slowly = True
        return None if self.off else self.opened

    def _hangs(self) -> bool:
        """Whether to ask would cost one more deadline: all threads are at what somebody has given up, or somebody has
        waited in vain for the store to open. It is over when one comes back, or the store is open."""
        if not self._ready.is_set():
            return self._opens_slowly
        now, ends = time.monotonic(), list(self._at_work.values())
        return len(ends) == FETCH_THREADS and max(ends) < now

    def open(
        self,
        token_ids: Sequence[int],
        salt: str,
        adapter: str,
        num_local: int,
        wake: Callable[[], None],
        tenant: str,
        kv_class: KVClass = CHAT,
    ) -> StoreSession:
        session = StoreSession(self, token_ids, salt, adapter, num_local, tenant_tag(tenant))
        session.ttl_class = BY_NAME[kv_class]
        if session.worth_asking and not self.off:
            self.tally.asked += 1
            if self._hangs():
                self.tally.late += 1
            else:
                self._fetch(session, time.monotonic() + self.fetch_timeout_s, wake)
        return session

    def _fetch(self, session: StoreSession, deadline: float, wake: Callable[[], None]) -> None:
        session.begin(deadline)
        try:
            self._threads.submit(self._work, session, deadline).add_done_callback(lambda _: wake())
        except RuntimeError as error:  # the process may start no thread
            session.cancel()
            self.health.failed("a fetch", reason(error))

    def _work(self, session: StoreSession, deadline: float) -> None:
        """On a fetch thread. What waited behind others until nobody wants it is left alone."""
        self._at_work[session] = deadline
        try:
            if session.num_external_tokens() is None:
                session.fetch()
        finally:
            del self._at_work[session]

    def save(self, session: StoreSession, key: bytes, index: int, blocks: Sequence[int]) -> None:
        """Notes a sealed grain for the next flush."""
        if self._saver is not None and not self.off:
            self._saver.add(Grain(key, session.tenant, index, session.turn, blocks, session.ttl_class))

    def learn(self, keys: Sequence[bytes], match: StoreMatch) -> None:
        """What a look-up told: what is stored need not be saved, what has gone must be again. From fetch threads."""
        if self._saver is not None:
            self._saver.learn(keys, match)

    def missed(self, key: bytes, kind: int) -> None:
        """A value could not be read: it is to be saved again. From fetch threads."""
        if self._saver is not None:
            self._saver.missed([(key, kind)])

    def flush(self) -> None:
        if self._saver is not None and not self.off:
            self._saver.flush()

    def counts(self) -> dict[str, int]:
        return asdict(self.tally) | (self.opened.counts() if self.opened is not None else {})

    def disable(self, reason: str) -> None:
        if not self.off:
            log.warning("the KV store is not used: %s", reason)
        self.off = True

    def close(self) -> None:
        self._ready.wait(OPEN_WAIT_S)
        with self._lock:
            self._closed = True
        self._threads.shutdown(wait=True, cancel_futures=True)  # fetches have deadlines
        if self._saver is not None:
            self._saver.close()
        if self.opened is not None:
            try:
                self.opened.close()
            except Exception as error:
                self.health.failed("closing", reason(error))
        self.off = True

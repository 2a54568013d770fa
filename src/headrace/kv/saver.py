"""The saver: copies of sealed grains go from the device into the store, on a thread, behind a bounded queue.

The copy is fenced by the device's order: it is queued after the step that sealed the grain and before any step that may
reuse its blocks. Where the queue is full a grain is not saved: computing never waits for the disk.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headrace.contract.ports import BlockMover, Bytes

from .ages import CHAT
from .backend import Name
from .budget import Budget
from .known import Known
from .records import RecordSpec, StoreMatch

if TYPE_CHECKING:
    from .connector import ConnectorCounts, Store

log = logging.getLogger("headrace.kv")

MOST_BATCHES = 32  # steps whose copies may be under way
SAVE_BYTES = 256 << 20
COPY_TIMEOUT_S = 120.0  # of the device, which runs the copy in its turn
CLOSE_TIMEOUT_S = 30.0
GRACE_S = 10.0  # then, for what a store is given just now: more than a server may take to answer


@dataclass(frozen=True, slots=True)
class Grain:
    """A sealed grain and the kinds of it that are not stored yet."""

    key: bytes
    tenant: bytes
    index: int
    turn: int
    blocks: Sequence[int]
    ttl_class: int = CHAT
    kinds: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Batch:
    grains: list[Grain]
    copies: Future[list[dict[int, Bytes]]]
    size: int


def names_of(grains: Sequence[Grain]) -> set[Name]:
    """What of these grains is to be stored."""
    return {(grain.key, kind) for grain in grains for kind in grain.kinds}


class Saver:
    """``add`` and ``flush`` belong to the loop's thread and never wait."""

    def __init__(self, store: Store, specs: Sequence[RecordSpec], mover: BlockMover, tally: ConnectorCounts) -> None:
        self._store, self._specs, self._mover, self._tally = store, specs, mover, tally
        self._num_groups = sum(len(spec.groups) for spec in specs)
        self._budget = Budget(SAVE_BYTES)
        self._sealed: list[Grain] = []
        self._under_way: set[Name] = set()
        self._known = Known()
        self._queue: queue.Queue[Batch | None] = queue.Queue(MOST_BATCHES)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-kv-save", daemon=True)
        self._thread.start()

    def add(self, grain: Grain) -> None:
        """Notes a grain; its blocks are good until the next plan."""
        self._sealed.append(grain)

    def flush(self) -> None:
        """Queues the copies of what was added."""
        sealed, self._sealed = self._sealed, []
        grains = self._lacking(sealed)
        if not grains:
            return
        size = len(grains) * sum(spec.bytes_per_grain for spec in self._specs)
        if self._queue.full() or not self._budget.take(size):
            self._tally.dropped += len(grains)
            return
        try:
            copies = self._mover.read([grain.blocks for grain in grains])
        except Exception as error:  # the device is stuck or gone: whoever steps will say so
            log.debug("nothing is saved: %s", error)
            self._budget.give(size)
            self._tally.dropped += len(grains)
            return
        self._under_way |= names_of(grains)
        self._queue.put_nowait(Batch(grains, copies, size))  # only this thread puts

    def _lacking(self, sealed: list[Grain]) -> list[Grain]:
        """Those of which the blocks hold something that is neither stored nor on its way."""
        settled = self._settled([(grain.key, int(spec.kind)) for grain in sealed for spec in self._specs])
        out = []
        for grain in sealed:
            lacking = [spec for spec in self._specs if (grain.key, int(spec.kind)) not in settled]
            kinds = frozenset(int(spec.kind) for spec in lacking if spec.whole(grain.blocks, self._num_groups))
            if kinds:
                out.append(replace(grain, kinds=kinds))
                settled |= names_of(out[-1:])
        return out

    def _settled(self, names: list[Name]) -> set[Name]:
        """What is stored or on its way; of a store that answers slowly, what is known to be."""
        if not names:
            return set()
        under_way = {name for name in names if name in self._under_way}  # first: what leaves here is known by then
        held = self._store.has(names) if self._store.fast_lookups else self._known.holds(names)
        return under_way | {name for name, there in zip(names, held) if there}

    def learn(self, keys: Sequence[bytes], match: StoreMatch) -> None:
        """Takes in what a look-up of a chain has told. Behind what it found, the store is asked again for what should
        be there: what has left it shall be saved again. From fetch threads."""
        if self._store.fast_lookups:
            return
        self._known.note(match.proven(keys, self._specs))
        rest = [(key, int(spec.kind)) for key in keys[match.grains :] for spec in self._specs]
        doubted = [name for name, known in zip(rest, self._known.holds(rest)) if known]
        if doubted:
            held = self._store.has(doubted)
            self.missed([name for name, there in zip(doubted, held) if not there])

    def missed(self, names: Sequence[Name]) -> None:
        """These could not be read: they need to be saved again. From fetch threads."""
        self._known.forget(names)

    def _run(self) -> None:
        while (batch := self._queue.get()) is not None:
            try:
                self._store_batch(batch)
            except Exception as error:  # a step that failed took the copy with it
                self._tally.dropped += len(batch.grains)
                log.debug("grains were not saved: %s: %s", type(error).__name__, error)
            finally:
                self._under_way -= names_of(batch.grains)
                self._budget.give(batch.size)

    def _store_batch(self, batch: Batch) -> None:
        for grain, records in zip(batch.grains, batch.copies.result(COPY_TIMEOUT_S)):
            for kind in sorted(grain.kinds & records.keys()):
                if self._closing.is_set():
                    self._tally.dropped += 1
                    continue
                fields = {"depth": grain.index, "turn": grain.turn, "ttl_class": grain.ttl_class}
                stored = self._store.put(grain.key, kind, records[kind], tenant=grain.tenant, **fields)
                self._tally.saved += stored
                self._tally.dropped += not stored
                if stored:
                    self._known.note([(grain.key, kind)])

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S, grace_s: float = GRACE_S) -> None:
        """Lets what is queued be stored; what is not within the time is lost. Then at most the value that is being sent
        is waited for, ``grace_s``: the store is closed next."""
        deadline = time.monotonic() + timeout_s
        with contextlib.suppress(queue.Full):
            self._queue.put(None, timeout=timeout_s)
            self._thread.join(max(0.0, deadline - time.monotonic()))
        self._closing.set()
        if self._thread.is_alive():
            self._empty_queue()
            self._queue.put_nowait(None)  # only this thread puts, so there is room
            self._thread.join(grace_s)

    def _empty_queue(self) -> None:
        """Drops what nobody will store any more."""
        with contextlib.suppress(queue.Empty):
            while True:
                batch = self._queue.get_nowait()
                if batch is not None:
                    self._tally.dropped += len(batch.grains)
                    self._budget.give(batch.size)

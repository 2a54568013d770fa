"""The local store: values in segment files, their places in LMDB, on one machine, for any number of processes.

Put-if-absent; a value is visible only when complete and every read is checked. Every failure is a miss that is counted:
no method raises for what a disk does. Size-bounded; a lock of the process keeps its threads in order.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from headrace.contract.errors import StoreError, reason

from . import reclaim
from .ages import CHAT, expired
from .backend import part_of
from .chooser import Chooser
from .counts import Counts
from .damage import TROUBLE
from .disk import Disk
from .environments import MOST_VALUES
from .facts import facts_of
from .health import Health
from .index import ANY_SPACE, Entry, EntryKey, Index, entry_key
from .leaving import Leaving
from .lookup import read_value
from .place import refuse_foreign
from .policy import Policy
from .records import Match, RecordSpec, StoreMatch, usable_grains
from .recovery import open_index
from .segment import MOST_VALUE_BYTES, PAGE, Bytes, ValueHead, page_crcs
from .uses import Uses
from .writer import SegmentWriter, new_writer

SEGMENT_BYTES = 64 << 20


class LocalStore:
    """``folder`` is created. ``name_space``: 16 bytes that values must carry; none given: any (for maintenance).

    Raises StoreError when it cannot be opened; no other method does.
    """

    fast_lookups = True

    def __init__(
        self,
        folder: Path,
        capacity_bytes: int,
        *,
        name_space: bytes = ANY_SPACE,
        segment_bytes: int = SEGMENT_BYTES,
        policy: Policy | None = None,
        tenant_quota_bytes: int | None = None,
        disk: Disk | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.folder, self.capacity_bytes, self.name_space = folder, capacity_bytes, name_space
        self.segment_bytes = max(4 * PAGE, min(segment_bytes, capacity_bytes // 4))
        self.tenant_quota_bytes = tenant_quota_bytes
        self.chooser = Chooser(policy)
        self.counts, self.health = Counts(), Health(str(folder))
        self.disk = disk or Disk()
        self.clock = clock
        self.lock = threading.RLock()
        self.segments = folder / "segments"
        self.pinned: Callable[[EntryKey], bool] = lambda _: False  # what must not be evicted now
        self.refused: Entry | None = None  # the last value there was no room for
        self.leaving, self.most_values = Leaving(), MOST_VALUES
        self._writer: SegmentWriter | None = None
        self._closed = False
        self.index = self._open()
        self._uses = Uses(self.index, self.chooser, capacity_bytes, clock)

    def _open(self) -> Index:
        refuse_foreign(self.folder)
        place = self.folder / "index"
        try:
            for path in (self.segments, place):
                self.disk.make_folder(path)
            index, self.counts.recovered = open_index(self.disk, self.segments, place)
        except TROUBLE as error:
            raise StoreError(str(self.folder), f"cannot be opened: {error}") from error
        return index

    # -- reading ------------------------------------------------------------------------------------------------

    def has(self, keys: Sequence[tuple[bytes, int]]) -> list[bool]:
        """Which of (key, kind) are here, at one moment. A promise of nothing: ``get`` may still miss."""
        try:
            return self.index.served([entry_key(*key) for key in keys], self.name_space, self.clock())
        except TROUBLE:
            return [False] * len(keys)

    def sizes(self, keys: Sequence[tuple[bytes, int]]) -> list[int]:
        """Bytes of values; 0 for what is not here."""
        try:
            return self.index.lengths(entry_key(*key) for key in keys)
        except TROUBLE:
            return [0] * len(keys)

    def turn_of(self, key: bytes, kind: int) -> int:
        """The turn a value was stored in; 0 when it is not here."""
        try:
            entry = self.index.get(entry_key(key, kind))
        except TROUBLE:
            return 0
        return 0 if entry is None else entry.turn

    def match(self, keys: Sequence[bytes], specs: Sequence[RecordSpec], again: bool = False) -> StoreMatch:
        """How many grains from a chain's start can be had. No lease is needed: what goes meanwhile is a miss."""
        if all(spec.match is Match.ALL for spec in specs):
            end = self._leading(keys, specs)
        else:
            names = [(key, int(spec.kind)) for key in keys for spec in specs]
            held = dict(zip(names, self.has(names)))
            end = usable_grains(specs, len(keys), lambda grain, kind: held[keys[grain], int(kind)])
        self.observe(keys, end, [int(spec.kind) for spec in specs], again)
        return StoreMatch(end, self.turn_of(keys[end - 1], int(specs[0].kind)) if end else 0)

    def _leading(self, keys: Sequence[bytes], specs: Sequence[RecordSpec]) -> int:
        """``usable_grains`` where every kind must have every grain."""
        kinds = [bytes([spec.kind]) for spec in specs]
        try:
            names = [key + kind for key in keys for kind in kinds]
            return self.index.leading(names, self.name_space, self.clock()) // len(specs)
        except TROUBLE:
            return 0

    def observe(self, keys: Sequence[bytes], found: int, kinds: Sequence[int], again: bool = False) -> None:
        """A chain was asked for (``again`` by the same request) and so much of it found: what decides who leaves."""
        self._uses.note_chain(keys, found, kinds, again)

    def get_leased(self, lease: int, key: bytes, kind: int) -> Bytes | None:
        del lease
        return self.get(key, kind)

    def get_range(self, key: bytes, kind: int, offset: int, length: int) -> Bytes | None:
        """A part of a value; a miss where it does not reach so far. Reads, and checks, all of it."""
        return part_of(self.get(key, kind), offset, length)

    def release(self, lease: int) -> None:
        """There was none."""

    def get(self, key: bytes, kind: int) -> Bytes | None:
        """The value, checked; None is a miss, whatever the reason."""
        name = entry_key(key, kind)
        value = None
        for last in (False, True):  # a value that was moved between the look-up and the read is found at the second try
            try:
                entry = self.index.get(name)
                if entry is None or not self._serves_entry(entry):
                    break
                value = read_value(self, name, entry, last=last)
                break
            except FileNotFoundError:
                continue
            except TROUBLE as error:
                self.counts.failed_reads += 1
                if not self._closed:
                    self.health.failed("reading", reason(error))
                break
        if value is None:
            self.counts.misses += 1
            return None
        self.counts.hits += 1
        self.health.worked("reading")
        if self._uses.note(name):
            self.flush_uses()
        return value

    def _serves_entry(self, entry: Entry) -> bool:
        ours = self.name_space in (ANY_SPACE, entry.name_space)
        return ours and not expired(entry.ttl_class, entry.used, self.clock())

    def flush_uses(self) -> None:
        """Writes down what was used since the last time: the order in which values leave."""
        with contextlib.suppress(*TROUBLE):
            self._uses.flush()

    # -- writing ------------------------------------------------------------------------------------------------

    def put(
        self,
        key: bytes,
        kind: int,
        payload: Bytes,
        *,
        tenant: bytes = bytes(16),
        depth: int = 0,
        turn: int = 1,
        ttl_class: int = CHAT,
    ) -> bool:
        """Stores unless it is here; true when it is here afterwards."""
        head = ValueHead(key, kind, len(payload), self.name_space, tenant, depth, turn, ttl_class)
        if not 0 < head.length <= MOST_VALUE_BYTES or head.span + 2 * PAGE > self.capacity_bytes:
            self.counts.failed_puts += 1
            return False
        with self.lock:
            if self._closed:
                return False
            if self.has([(key, kind)])[0]:
                return True
            try:
                stored = self._store(head, payload)
                self.health.worked("writing")
            except TROUBLE as error:
                self.health.failed("writing", reason(error))
                stored = False
            self.counts.puts += stored
            self.counts.failed_puts += not stored
            return stored

    def _store(self, head: ValueHead, payload: Bytes) -> bool:
        self.flush_uses()
        what = (head.length, head.kind, head.ttl_class, head.depth, head.turn, head.name_space, head.tenant)
        entry = Entry(0, 0, *what, self.clock(), self._uses.asked_at(head.key))
        if not reclaim.admit(self, entry):
            return False
        writer, offset = self.append(replace(head, crcs=page_crcs(payload)), payload)
        name = entry_key(head.key, head.kind)
        with self.index.change() as change:
            change.set_size(writer.number, writer.size)
            held = change.get(name)
            if held is None or not self._serves_entry(held):  # another process may have been faster
                change.put(name, replace(entry, segment=writer.number, offset=offset))
        return True

    def append(self, head: ValueHead, payload: Bytes) -> tuple[SegmentWriter, int]:
        """Writes a value into the open segment, a new one when it is full. Raises OSError. Publishes nothing."""
        if self._writer is not None and self._writer.size + head.span > self.segment_bytes and self._writer.count:
            self.seal()
        if self._writer is None:
            self._writer = new_writer(self.disk, self.segments, self.index.next_segment)
        try:
            return self._writer, self._writer.append(head, payload)
        except OSError:
            if self._writer.broken:
                self._writer.abandon()
                self._writer = None
            raise

    def seal(self) -> None:
        """Closes the open segment, so that it may be collected and outlives a power failure."""
        with self.lock, contextlib.suppress(*TROUBLE):
            writer, self._writer = self._writer, None
            if writer is not None:
                writer.seal()
                with self.index.change() as change:
                    change.set_size(writer.number, writer.size + PAGE)
                self.index.sync()

    @property
    def open_segment_number(self) -> int | None:
        return None if self._writer is None else self._writer.number

    # -- looking after it ---------------------------------------------------------------------------------------

    def delete(self, key: bytes, kind: int) -> bool:
        """Forgets a value; its bytes are given back with their segment."""
        try:
            with self.index.change() as change:
                return change.remove(entry_key(key, kind))
        except TROUBLE:
            return False

    def names(self) -> Iterator[tuple[bytes, int]]:
        """(key, kind) of everything that is here. Raises StoreError when the index cannot be read."""
        try:
            entries = self.index.all_entries()
        except TROUBLE as error:
            raise StoreError(str(self.folder), f"cannot be listed: {error}") from error
        return ((name[:-1], name[-1]) for name, _ in entries)

    def stat(self) -> dict[str, Any]:
        """Sizes and counts, for people and metrics."""
        return facts_of(self)

    @property
    def policy(self) -> Policy:
        """By which values leave."""
        return self.chooser.policy

    def close(self) -> None:
        """Seals and lets go. Later calls store and find nothing."""
        with self.lock:
            if not self._closed:
                self.flush_uses()
                self.seal()
                self._closed = True
                self.index.close()

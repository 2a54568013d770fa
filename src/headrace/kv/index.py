"""The index of the local store: where each value lies, in LMDB. Many processes may read, one at a time write.

Every change is one transaction; an entry is written after its value is complete and taken out before its bytes are
reused. The index may be lost at any time: it is built again from the segments. Never holds content.
Look-ups of many names go past LMDB: C++ reads the same pages (``csrc/core/store_index.h``), for the same answer.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import lmdb
import numpy as np

from headrace._core import StoreIndex

from .ages import TTL_S, expired, last_use
from .disk import Disk
from .environments import DATABASES, ENVIRONMENTS, Closed
from .segment import PAGE, padded

ENTRY = struct.Struct("<IQIBBII16s16sdd")
SEGMENT = struct.Struct("<QQ")
TENANT = struct.Struct("<Q")
SPACE = struct.Struct("<QQ")  # of a namespace: values, and their bytes
SERVING = struct.Struct("<17xB8x16s24xd")  # of an entry: class, namespace, last use
LENGTH = struct.Struct("<12xI58x")  # of an entry
SPACES, COUNTED = b"space", b"counted"  # in the database of facts: a namespace's count, and that there are such
LIFETIMES = np.array([TTL_S[ttl_class] for ttl_class in range(len(TTL_S))])
ANY_SPACE = bytes(16)

EntryKey = bytes  # a grain's 32-byte key and one byte for the kind


def entry_key(key: bytes, kind: int) -> EntryKey:
    return key + bytes([kind])


@dataclass(frozen=True, slots=True)
class Entry:
    """One value: its place, what it is, and when it was last used (``created``, ``used``: seconds of wall time)."""

    segment: int
    offset: int
    length: int
    kind: int
    ttl_class: int
    depth: int
    turn: int
    name_space: bytes
    tenant: bytes
    created: float
    used: float

    @property
    def span(self) -> int:
        """Bytes it takes in its segment."""
        return PAGE + padded(self.length)

    def pack(self) -> bytes:
        place = (self.segment, self.offset, self.length, self.kind, self.ttl_class, self.depth, self.turn)
        return ENTRY.pack(*place, self.name_space, self.tenant, self.created, self.used)

    @classmethod
    def unpack(cls, data: bytes) -> Entry:
        entry = cls(*ENTRY.unpack(data))
        if entry.offset >= 2**63:
            raise lmdb.CorruptedError("an entry lies where no file reaches")
        return entry


@dataclass(slots=True)
class SegmentRow:
    """``size``: bytes of the file. ``live``: bytes of it that entries refer to."""

    size: int = 0
    live: int = 0


@dataclass(frozen=True, slots=True)
class Totals:
    """Of all entries. ``value_bytes``: of payloads."""

    values: int
    value_bytes: int
    tenants: int
    name_spaces: int


class Change:
    """One transaction; made by ``Index.change``."""

    def __init__(self, txn: lmdb.Transaction, index: Index) -> None:
        self._txn, self._index = txn, index

    def get(self, key: EntryKey) -> Entry | None:
        data = self._txn.get(key, db=self._index.entries)
        return None if data is None else Entry.unpack(bytes(data))

    def put(self, key: EntryKey, entry: Entry) -> None:
        """Adds or replaces."""
        self.remove(key)
        self._txn.put(key, entry.pack(), db=self._index.entries)
        self._credit(entry, 1)

    def mark_used(self, key: EntryKey, when: float, turn: int = 0, now: float = math.inf) -> None:
        """Moves an entry to the young end, in a later ``turn`` perhaps; nothing happens when it is gone."""
        entry = self.get(key)
        if entry is not None:
            changed = replace(entry, used=max(when, last_use(entry.used, now)), turn=max(turn, entry.turn))
            self._txn.put(key, changed.pack(), db=self._index.entries)

    def remove(self, key: EntryKey) -> bool:
        """Takes an entry out; false when there was none."""
        entry = self.get(key)
        if entry is None:
            return False
        self._txn.delete(key, db=self._index.entries)
        self._credit(entry, -1)
        return True

    def remove_at(self, key: EntryKey, entry: Entry) -> bool:
        """Takes an entry out if it is still where it was; false when it has gone or moved."""
        now = self.get(key)
        here = now is not None and (now.segment, now.offset) == (entry.segment, entry.offset)
        return here and self.remove(key)

    def segment(self, number: int) -> SegmentRow | None:
        data = self._txn.get(struct.pack(">I", number), db=self._index.segments)
        return None if data is None else SegmentRow(*SEGMENT.unpack(bytes(data)))

    def set_size(self, number: int, size: int) -> None:
        """Notes a segment, or how large it has become."""
        live = (self.segment(number) or SegmentRow()).live
        self._txn.put(struct.pack(">I", number), SEGMENT.pack(size, live), db=self._index.segments)

    def forget_segment(self, number: int) -> None:
        self._txn.delete(struct.pack(">I", number), db=self._index.segments)

    def next_segment(self) -> int:
        """A number nobody had before."""
        number = int(bytes(self._txn.get(b"next", b"1", db=self._index.meta)))
        self._txn.put(b"next", str(number + 1).encode(), db=self._index.meta)
        return number

    def at_least_segment(self, number: int) -> None:
        """Numbers found on disk are taken, whatever the index says."""
        if int(bytes(self._txn.get(b"next", b"1", db=self._index.meta))) <= number:
            self._txn.put(b"next", str(number + 1).encode(), db=self._index.meta)

    def tenant_bytes(self, tenant: bytes) -> int:
        """Bytes of segments that a tenant's entries refer to."""
        data = self._txn.get(tenant, db=self._index.tenants)
        return 0 if data is None else int(TENANT.unpack(bytes(data))[0])

    def _credit(self, entry: Entry, sign: int) -> None:
        """Counts an entry that came (1) or went (-1)."""
        row = self.segment(entry.segment)
        if row is not None:
            packed = SEGMENT.pack(row.size, max(0, row.live + sign * entry.span))
            self._txn.put(struct.pack(">I", entry.segment), packed, db=self._index.segments)
        total = max(0, self.tenant_bytes(entry.tenant) + sign * entry.span)
        self._keep(self._index.tenants, entry.tenant, TENANT.pack(total) if total else None)
        values, size = self._space(entry.name_space)
        self._note_space(entry.name_space, values + sign, size + sign * entry.length)

    def _keep(self, database: Any, key: bytes, data: bytes | None) -> None:
        if data is None:
            self._txn.delete(key, db=database)
        else:
            self._txn.put(key, data, db=database)

    def _space(self, name_space: bytes) -> tuple[int, int]:
        data = self._txn.get(SPACES + name_space, db=self._index.meta)
        return (0, 0) if data is None else SPACE.unpack(bytes(data))

    def _note_space(self, name_space: bytes, values: int, size: int) -> None:
        packed = SPACE.pack(values, max(0, size)) if values > 0 else None
        self._keep(self._index.meta, SPACES + name_space, packed)

    def totals(self) -> Totals:
        rows = self._txn.cursor(db=self._index.meta)
        found = rows.iternext() if rows.set_range(SPACES) else ()
        spaces = [SPACE.unpack(bytes(data)) for key, data in found if bytes(key).startswith(SPACES)]
        tenants = int(self._txn.stat(db=self._index.tenants)["entries"])
        return Totals(sum(n for n, _ in spaces), sum(size for _, size in spaces), tenants, len(spaces))

    def count_all(self) -> None:
        """Once, of an index that was made before namespaces were counted."""
        if self._txn.get(COUNTED, db=self._index.meta) is not None:
            return
        spaces: dict[bytes, tuple[int, int]] = {}
        for _, data in self._txn.cursor(db=self._index.entries):
            entry = Entry.unpack(bytes(data))
            values, size = spaces.get(entry.name_space, (0, 0))
            spaces[entry.name_space] = values + 1, size + entry.length
        for name_space, (values, size) in spaces.items():
            self._note_space(name_space, values, size)
        self._txn.put(COUNTED, b"1", db=self._index.meta)


class Index:
    """Opens or creates, in an existing folder. This and every call raise what ``TROUBLE`` names."""

    def __init__(self, folder: Path, disk: Disk | None = None) -> None:
        self._held = ENVIRONMENTS.take(folder, disk or Disk())
        self._env, self._writing = self._held.environment, self._held.writing
        try:
            self._env.reader_check()  # slots of readers that were killed
            with self._held.turn.held():  # each opens a transaction that writes
                self.entries, self.segments, self.tenants, self.meta = map(self._env.open_db, DATABASES)
            self._count_all()
        except BaseException:  # else the next one would be given this environment, whatever lies there by then
            ENVIRONMENTS.give(self._held)
            raise
        self._reader = _reader_of(folder / "data.mdb")

    def _count_all(self) -> None:
        with self._env.begin() as txn:
            counted = txn.get(COUNTED, db=self.meta) is not None
        if not counted:  # only then: a writer waits for all others
            with self.change() as change:
                change.count_all()

    def check(self) -> None:
        """Reads what opening a store does not read otherwise. Raises what ``DAMAGED`` names."""
        with self._env.begin() as txn:
            for _, data in txn.cursor(db=self.tenants):
                TENANT.unpack(data)
            Change(txn, self).totals()
            int(bytes(txn.get(b"next", b"1", db=self.meta)))

    @contextmanager
    def change(self) -> Iterator[Change]:
        """One transaction, all or nothing. Raises TimeoutError where another process stands still in its own."""
        with self._writing() as txn:
            yield Change(txn, self)

    def next_segment(self) -> int:
        """A number nobody had before."""
        with self.change() as change:
            return change.next_segment()

    def get(self, key: EntryKey) -> Entry | None:
        with self._env.begin() as txn:
            return Change(txn, self).get(key)

    def lengths(self, keys: Iterable[EntryKey]) -> list[int]:
        """Bytes of several values, all of one moment; 0 for what is not there."""
        with self._env.begin(db=self.entries) as txn:
            return [0 if data is None else LENGTH.unpack(data)[0] for data in map(txn.get, keys)]

    def served(self, keys: Sequence[EntryKey], name_space: bytes, now: float) -> list[bool]:
        """Which entries are of ``name_space`` (ANY_SPACE: of any) and not expired, all of one moment."""
        reader = self._reader
        found = None if reader is None else reader.has(b"".join(keys), name_space, now, LIFETIMES)
        return self._served(keys, name_space, now) if found is None else found

    def leading(self, keys: Sequence[EntryKey], name_space: bytes, now: float) -> int:
        """How many entries, up to the first that is not, are ``served``."""
        reader = self._reader
        count = None if reader is None else reader.leading(b"".join(keys), name_space, now, LIFETIMES)
        return [*self._served(keys, name_space, now), False].index(False) if count is None else count

    def _served(self, keys: Sequence[EntryKey], name_space: bytes, now: float) -> list[bool]:
        """``served`` by LMDB."""
        with self._env.begin(db=self.entries) as txn:
            found = [None if data is None else SERVING.unpack(data) for data in map(txn.get, keys)]
        return [
            entry is not None and name_space in (ANY_SPACE, entry[1]) and not expired(entry[0], entry[2], now)
            for entry in found
        ]

    def tenant_bytes(self, tenant: bytes) -> int:
        with self._env.begin() as txn:
            return Change(txn, self).tenant_bytes(tenant)

    def totals(self) -> Totals:
        with self._env.begin() as txn:
            return Change(txn, self).totals()

    def segment(self, number: int) -> SegmentRow | None:
        with self._env.begin() as txn:
            return Change(txn, self).segment(number)

    def all_entries(self) -> list[tuple[EntryKey, Entry]]:
        with self._env.begin() as txn:
            return [(bytes(k), Entry.unpack(v)) for k, v in txn.cursor(db=self.entries)]

    def all_segments(self) -> dict[int, SegmentRow]:
        with self._env.begin() as txn:
            rows = txn.cursor(db=self.segments)
            return {struct.unpack(">I", k)[0]: SegmentRow(*SEGMENT.unpack(v)) for k, v in rows}

    def count(self) -> int:
        with self._env.begin() as txn:
            return int(txn.stat(db=self.entries)["entries"])

    def sync(self) -> None:
        self._env.sync(True)

    def close(self) -> None:
        """Later calls raise lmdb.Error. Others of this process may go on with theirs."""
        if not isinstance(self._env, Closed):
            self._env, self._writing, self._reader = Closed(), Closed().begin, None
            ENVIRONMENTS.give(self._held)


def _reader_of(path: Path) -> StoreIndex | None:
    """The C++ reader; None where it cannot read this file (a format it does not know, no address space): LMDB can."""
    try:
        return StoreIndex(str(path))
    except (RuntimeError, ValueError):
        return None

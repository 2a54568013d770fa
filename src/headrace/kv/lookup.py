"""Reads one value of a local store by its entry. What is read is checked; what fails is dropped from the index."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .index import Entry, EntryKey
from .segment import Bytes, decode_head, read_page, read_payload
from .writer import open_segment

if TYPE_CHECKING:
    from .local import LocalStore


def read_value(store: LocalStore, name: EntryKey, entry: Entry, *, last: bool) -> Bytes | None:
    """The value, or None: it was not what the entry says. Raises OSError and lmdb.Error.

    Where the file is gone the value may have been moved since the look-up: FileNotFoundError, unless this was the
    ``last`` try.
    """
    try:
        fd = open_segment(store.disk, store.segments, entry.segment)
    except FileNotFoundError:
        if not last:
            raise
        _drop(store, name, entry)
        return None
    try:
        value = _read_checked(store, fd, name, entry)
    finally:
        store.disk.close(fd)
    if value is None:
        _drop(store, name, entry)
    return value


def _read_checked(store: LocalStore, fd: int, name: EntryKey, entry: Entry) -> Bytes | None:
    page = read_page(store.disk, fd, entry.offset)
    head = None if page is None else decode_head(page)
    if head is None or head.dead or head.name_space != entry.name_space:
        return None
    same = (head.key, head.kind, head.length) == (name[:-1], entry.kind, entry.length)
    return read_payload(store.disk, fd, entry.offset, head) if same else None


def _drop(store: LocalStore, name: EntryKey, entry: Entry) -> None:
    """An entry whose bytes are gone or not what they should be, unless it points elsewhere by now."""
    with store.index.change() as change:
        store.counts.damaged += change.remove_at(name, entry)

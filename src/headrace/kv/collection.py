"""Giving segments back: what lives in an emptyish one is copied to the open one, then its file goes.

The order is always: entries out, bytes after. What is interrupted leaves at most bytes that nobody refers to, which the
next collection takes. Several engines may collect in one folder: whoever is late finds nothing to do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .disk import write_all
from .index import Entry, EntryKey, entry_key
from .segment import PAGE, decode_head, read_page, read_payload, scan
from .writer import is_gone, open_segment, sealed_path

if TYPE_CHECKING:
    from .local import LocalStore

WORTH_MOVING = 0.5  # a segment with more than this share alive is emptied by eviction rather than copied
ZEROS = bytes(1 << 20)


def collect(store: LocalStore, *, everything: bool = False) -> bool:
    """Gives the emptiest sealed segment back, copying what lives in it; false when none is worth it.

    ``everything``: any segment with a dead byte is worth it.
    """
    rows = store.index.all_segments()
    own = store.open_segment_number
    sealed = [n for n in rows if n != own and sealed_path(store.segments, n).exists()]
    lost = [n for n in rows if n != own and n not in sealed and is_gone(store.segments, n)]
    for number in lost:  # somebody has removed the file: its row must not take room for ever
        _forget_entries(store, number)
        _remove(store, number)
    if lost or not sealed:
        return bool(lost)
    number = min(sealed, key=lambda n: rows[n].live / max(1, rows[n].size))
    row = rows[number]
    most = row.size - 2 * PAGE - 1 if everything else WORTH_MOVING * row.size
    if row.live > most:
        return False
    if row.live and not _empty(store, number):
        return False
    _remove(store, number)
    return True


def destroy(store: LocalStore, number: int) -> None:
    """Of a sealed segment that cannot be read through: what can be read and lives is copied, then every byte is
    overwritten, and the file goes. Raises OSError."""
    _empty(store, number)
    try:
        fd = store.disk.open(sealed_path(store.segments, number), write=True)
    except FileNotFoundError:  # collected meanwhile
        return
    try:
        size = store.disk.size(fd)
        for offset in range(0, size, len(ZEROS)):
            write_all(store.disk, fd, [memoryview(ZEROS)[: size - offset]], offset)
        store.disk.sync(fd)
    finally:
        store.disk.close(fd)
    _remove(store, number)


def _remove(store: LocalStore, number: int) -> None:
    store.disk.remove(sealed_path(store.segments, number))
    with store.index.change() as change:
        change.forget_segment(number)


def _empty(store: LocalStore, number: int) -> bool:
    """Copies what lives in a segment to the open one; damaged values are left behind. False when some still lives."""
    try:
        fd = open_segment(store.disk, store.segments, number)
    except FileNotFoundError:  # another engine was faster
        _forget_entries(store, number)
        return True
    try:
        for key, entry in _living(store, fd, number):
            _move_value(store, fd, key, entry)
        row = store.index.segment(number)
        if row is None or not row.live:
            return True
        for key, entry in _entries_of(store, number):  # behind a damaged header
            _move_value(store, fd, key, entry)
    finally:
        store.disk.close(fd)
    return not _entries_of(store, number)


def _living(store: LocalStore, fd: int, number: int) -> Iterator[tuple[EntryKey, Entry]]:
    """What the file has and the index still refers to: asked value by value, for an index may be large."""
    for offset, head in scan(store.disk, fd, number):
        key = entry_key(head.key, head.kind)
        entry = None if head.dead else store.index.get(key)
        if entry is not None and (entry.segment, entry.offset) == (number, offset):
            yield key, entry


def _entries_of(store: LocalStore, number: int) -> list[tuple[EntryKey, Entry]]:
    return [(key, entry) for key, entry in store.index.all_entries() if entry.segment == number]


def _forget_entries(store: LocalStore, number: int) -> None:
    """What still refers to a segment that is gone."""
    lost = _entries_of(store, number)
    with store.index.change() as change:
        for key, entry in lost:
            change.remove_at(key, entry)


def _move_value(store: LocalStore, fd: int, key: EntryKey, entry: Entry) -> None:
    page = read_page(store.disk, fd, entry.offset)
    head = None if page is None else decode_head(page)
    payload = None if head is None or head.dead else read_payload(store.disk, fd, entry.offset, head)
    if head is None or payload is None or head.key != key[:-1]:
        with store.index.change() as change:
            store.counts.damaged += change.remove_at(key, entry)
        return
    writer, offset = store.append(head, payload)
    moved = (writer.number, offset, entry.length, entry.kind, entry.ttl_class, entry.depth, entry.turn)
    with store.index.change() as change:
        change.set_size(writer.number, writer.size)
        now = change.get(key)
        still = now is not None and (now.segment, now.offset) == (entry.segment, entry.offset)
        if now is not None and still:
            change.put(key, Entry(*moved, entry.name_space, entry.tenant, entry.created, now.used))
    if not still:  # purged perhaps, between the read and the copy: nobody would find these bytes to overwrite them
        writer.destroy(offset, head)

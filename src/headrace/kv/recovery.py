"""What opening a store repairs: segments of dead writers are sealed, index and files are made to agree.

Whatever was complete is found again; the rest is given back. Segments of living writers are left alone.
"""

from __future__ import annotations

import contextlib
import logging
import time
from pathlib import Path

from .damage import DAMAGED
from .disk import Disk, write_all
from .index import Entry, Index, entry_key
from .segment import FOOT, PAGE, ValueHead, encode_mark, read_payload, scan
from .writer import PART, is_gone, part_path, sealed_path, segment_files

log = logging.getLogger("headrace.kv")


def open_index(disk: Disk, folder: Path, place: Path) -> tuple[Index, int]:
    """The index at ``place`` of the segments in ``folder``, in agreement with them, and how many values were found
    again. A damaged one is built anew. Raises what ``TROUBLE`` names."""
    try:
        return _open_recovered(disk, folder, place)
    except DAMAGED as error:
        log.warning("the KV store's index is damaged (%s) and is built anew", error)
        remove_index(place)
        return _open_recovered(disk, folder, place)


def _open_recovered(disk: Disk, folder: Path, place: Path) -> tuple[Index, int]:
    index = Index(place, disk)
    try:
        index.check()
        return index, recover(disk, folder, index)
    except BaseException:
        index.close()
        raise


def recover(disk: Disk, folder: Path, index: Index) -> int:
    """Makes index and files agree; returns how many values were found again."""
    files, known = segment_files(folder), index.all_segments()
    found = 0
    for number in sorted(files):
        with contextlib.suppress(FileNotFoundError):  # sealed or collected meanwhile, by somebody who lives
            if files[number].suffix == PART:
                found += _adopt(disk, folder, number, index)
            elif number not in known:
                found += _list(disk, files[number], number, index)
    _forget_missing(folder, index)
    return found


def _adopt(disk: Disk, folder: Path, number: int, index: Index) -> int:
    """Seals the segment of a writer that has died; 0 when it lives. Raises FileNotFoundError when it is gone."""
    fd = disk.open(part_path(folder, number), write=True)
    try:
        if not disk.lock(fd, part_path(folder, number)):  # its writer lives, or has just sealed it
            return 0
        values = _complete(disk, fd, number)
        end = max((offset + head.span for offset, head in values), default=PAGE)
        if not values:
            disk.remove(part_path(folder, number))
            return 0
        disk.truncate(fd, end)
        write_all(disk, fd, [encode_mark(FOOT, number, len(values))], end)
        disk.sync(fd)
        disk.rename(part_path(folder, number), sealed_path(folder, number))
        return _publish(index, number, values, end + PAGE)
    finally:
        disk.close(fd)


def _list(disk: Disk, path: Path, number: int, index: Index) -> int:
    """A sealed segment the index does not know: its index was lost, or the writer died while sealing.

    Raises FileNotFoundError when it is gone."""
    fd = disk.open(path)
    try:
        values = _complete(disk, fd, number)
        return _publish(index, number, values, disk.size(fd))
    finally:
        disk.close(fd)


def _complete(disk: Disk, fd: int, number: int) -> list[tuple[int, ValueHead]]:
    """Values and tombstones up to the first value that is torn."""
    out = []
    for offset, head in scan(disk, fd, number):
        if not head.dead and read_payload(disk, fd, offset, head) is None:
            break
        out.append((offset, head))
    return out


def _publish(index: Index, number: int, values: list[tuple[int, ValueHead]], size: int) -> int:
    """Enters what the index does not hold yet."""
    now, found = time.time(), 0
    with index.change() as change:
        change.at_least_segment(number)
        change.set_size(number, size)
        for offset, head in values:
            key = entry_key(head.key, head.kind)
            if head.dead or change.get(key) is not None:
                continue
            place = (number, offset, head.length, head.kind, head.ttl_class, head.depth, head.turn)
            change.put(key, Entry(*place, head.name_space, head.tenant, now, now))
            found += 1
    return found


def _forget_missing(folder: Path, index: Index) -> None:
    """Entries of segments that are gone, and the segments' rows."""
    missing = {number for number in set(index.all_segments()) - set(segment_files(folder)) if is_gone(folder, number)}
    entries = index.all_entries()
    known = set(index.all_segments()) | set(segment_files(folder))
    with index.change() as change:
        for key, entry in entries:
            if entry.segment in missing or entry.segment not in known:
                change.remove_at(key, entry)
        for number in missing:
            change.forget_segment(number)


def remove_index(folder: Path) -> None:
    """Throws a damaged index away; ``recover`` makes it anew from the segments."""
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):
            path.unlink()

"""The segment a process appends to: a ``.part`` file, locked by its owner, sealed by foot, sync and rename.

A write that fails is taken back, and where even that fails the segment is given up: nothing behind a torn value is
ever written. Only complete values leave ``append``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from .disk import Disk, write_all
from .segment import FOOT, HEAD, PAGE, Bytes, ValueHead, encode_head, encode_mark, padded

PART, SEALED = ".part", ".seg"
MOST_SEGMENT = 2**32 - 1  # of their numbers
ATTEMPTS = 4  # at a new segment


def part_path(folder: Path, number: int) -> Path:
    return folder / f"{number:08d}{PART}"


def sealed_path(folder: Path, number: int) -> Path:
    return folder / f"{number:08d}{SEALED}"


def segment_files(folder: Path) -> dict[int, Path]:
    """What a folder holds, by number; of each the name it had when it was listed."""
    files = {}
    for path in folder.iterdir():
        if path.suffix in (PART, SEALED) and path.stem.isdecimal() and int(path.stem) <= MOST_SEGMENT:
            files[int(path.stem)] = path
    return files


def is_gone(folder: Path, number: int) -> bool:
    """Looks by name: a list of a folder in which a file is just being renamed may have neither of its names."""
    return not any(path(folder, number).exists() for path in (sealed_path, part_path, sealed_path))


class Taken(OSError):
    """Somebody who cleans up was faster than the lock: the file may have no name any more. The number is lost."""


class SegmentWriter:
    """Raises OSError from every call; after one from ``append``, ``broken`` says whether it may be called again."""

    def __init__(self, disk: Disk, folder: Path, number: int) -> None:
        self._disk, self._folder, self.number = disk, folder, number
        self._fd = disk.create(part_path(folder, number))
        self.size, self.count, self.broken = PAGE, 0, False
        try:
            if not disk.lock(self._fd, part_path(folder, number)):
                raise Taken(0, f"segment {number} was taken for a dead one")
            write_all(disk, self._fd, [encode_mark(HEAD, number, 0)], 0)
        except OSError:
            disk.close(self._fd)
            with contextlib.suppress(OSError):
                disk.remove(part_path(folder, number))
            raise

    def append(self, head: ValueHead, payload: Bytes) -> int:
        """Where the value lies once it is complete. A failed write leaves the segment as it was, or broken."""
        offset = self.size
        padding = bytes(padded(len(payload)) - len(payload))
        try:
            write_all(self._disk, self._fd, [encode_head(head), payload.data, padding], offset)
        except OSError:
            self._take_back(offset)
            raise
        self.size, self.count = offset + head.span, self.count + 1
        return offset

    def _take_back(self, offset: int) -> None:
        try:
            self._disk.truncate(self._fd, offset)
        except OSError:
            self.broken = True

    def destroy(self, offset: int, head: ValueHead) -> None:
        """Makes a value that was appended unreadable for good."""
        overwrite(self._disk, self._fd, offset, head)

    def seal(self) -> None:
        """Foot, sync, rename: from here on the segment is nobody's and everybody's."""
        try:
            write_all(self._disk, self._fd, [encode_mark(FOOT, self.number, self.count)], self.size)
            self._disk.sync(self._fd)
            self._disk.rename(part_path(self._folder, self.number), sealed_path(self._folder, self.number))
        finally:
            self._disk.close(self._fd)

    def abandon(self) -> None:
        """Lets go without sealing; whoever opens the store next cleans up."""
        with contextlib.suppress(OSError):
            self._disk.close(self._fd)


def new_writer(disk: Disk, folder: Path, next_number: Callable[[], int]) -> SegmentWriter:
    """One with a number nobody had; again with the next where somebody took the file away. Raises OSError."""
    for _ in range(ATTEMPTS - 1):
        with contextlib.suppress(Taken):
            return SegmentWriter(disk, folder, next_number())
    return SegmentWriter(disk, folder, next_number())


def open_segment(disk: Disk, folder: Path, number: int, *, write: bool = False) -> int:
    """A segment's file, sealed or not. Raises FileNotFoundError when it is gone."""
    for path in (sealed_path(folder, number), part_path(folder, number), sealed_path(folder, number)):
        with contextlib.suppress(FileNotFoundError):  # it may be renamed between two looks
            return disk.open(path, write=write)
    raise FileNotFoundError(2, "no such segment", str(sealed_path(folder, number)))


def overwrite(disk: Disk, fd: int, offset: int, head: ValueHead) -> None:
    """Makes a value unreadable for good: a tombstone header, zeros for the payload. Raises OSError."""
    dead = ValueHead(bytes(32), head.kind, head.length, bytes(16), bytes(16), dead=True)
    write_all(disk, fd, [encode_head(dead), bytes(padded(head.length))], offset)

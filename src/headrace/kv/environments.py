"""LMDB environments of this process, each folder's opened once and shared by all who ask for it.

LMDB locks files by the process: were a folder opened twice in one, closing either would drop the locks of both, so it
must not be. This is why there is one register for the process; nothing else may be kept here.
"""

from __future__ import annotations

import fcntl
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import lmdb

from .disk import Disk
from .pages import check_pages
from .turn import Turn

DATABASES = b"entries", b"segments", b"tenants", b"meta"
MAP_BYTES = 1 << 34  # address space; the file is as large as what is in it
VALUE_BYTES = 512  # of the map, for an entry: it takes 115, twice that on half-empty pages, and changes copy pages
MOST_VALUES = MAP_BYTES // VALUE_BYTES
MOST_READERS = 512
READERS_EVERY = 64  # changes
FLOCK = struct.Struct("@hhqqi")  # of fcntl: type, whence, start, length, process
LOCK_BYTES = 64 << 10  # more than the table of so many readers takes: 64 bytes each, and a head


@dataclass(slots=True)
class Held:
    """An environment, whose turn it is to change it, and how many have it. ``name``: its folder's."""

    name: tuple[int, int]
    environment: Any
    turn: Turn
    holders: int = 0
    changes: int = 0

    @contextmanager
    def writing(self) -> Iterator[Any]:
        """A transaction that changes it. Now and then the slots of readers that were killed in the midst of theirs are
        freed: as long as one stands, no page that has been replaced since is used again, and the file only grows."""
        with self.turn.held():
            self.changes += 1
            if self.changes % READERS_EVERY == 0:
                self.environment.reader_check()
            with self.environment.begin(write=True) as txn:
                yield txn


class Register:
    """Thread-safe. Environments by their folder's device and number."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[tuple[int, int], Held] = {}

    def take(self, folder: Path, disk: Disk) -> Held:
        """The environment in an existing folder, to be given back. Raises OSError and lmdb.Error; what is damaged is
        found before LMDB maps it (``pages.py``)."""
        found = folder.stat()
        name = found.st_dev, found.st_ino
        with self._lock:
            if name not in self._held:
                self._held[name] = _open(name, folder, disk)
            self._held[name].holders += 1
            return self._held[name]

    def give(self, held: Held) -> None:
        """Closed with its last holder."""
        with self._lock:
            held.holders -= 1
            if not held.holders:
                del self._held[held.name]
                held.environment.close()
                held.turn.close()


def _open(name: tuple[int, int], folder: Path, disk: Disk) -> Held:
    _look_over(folder)
    _reserve(disk, folder / "lock.mdb")
    # Without sync: a killed process loses nothing; a power failure may cost the index, which is rebuilt.
    environment = lmdb.open(
        str(folder), map_size=MAP_BYTES, max_dbs=len(DATABASES), mode=0o600, sync=False, max_readers=MOST_READERS
    )
    try:
        return Held(name, environment, Turn(folder / "data.mdb"))
    except OSError:
        environment.close()
        raise


def _look_over(folder: Path) -> None:
    """Raises lmdb.CorruptedError for a damaged file that nobody uses. One in use was looked over by whoever opened it
    first, and changes under a walk."""
    if _used_elsewhere(folder / "lock.mdb"):
        return
    try:
        check_pages(folder / "data.mdb")
    except lmdb.CorruptedError:
        if not _used_elsewhere(folder / "lock.mdb"):  # else somebody has opened it meanwhile
            raise


def _used_elsewhere(lock: Path) -> bool:
    """Whether another process has the environment open: LMDB holds a lock on the first byte as long. Asked only while
    this process has it not: closing the file ends the locks a process holds on it."""
    try:
        with lock.open("rb") as file:
            asked = FLOCK.pack(fcntl.F_WRLCK, 0, 0, 1, 0)
            answer = FLOCK.unpack(fcntl.fcntl(file, fcntl.F_GETLK, asked)[: FLOCK.size])
    except FileNotFoundError:
        return False
    return bool(answer[0] != fcntl.F_UNLCK)


def _reserve(disk: Disk, lock: Path) -> None:
    """The table of readers is written through a map: on a full disk that would be a signal, not an error. Only where it
    is needed: closing a file ends this process's locks on it. The data are written by calls, whose errors are told."""
    if disk.reserved(lock) < LOCK_BYTES:
        disk.reserve(lock, LOCK_BYTES)


ENVIRONMENTS = Register()


class Closed:
    """Stands where an environment was."""

    def begin(self, *_: Any, **__: Any) -> NoReturn:
        raise lmdb.Error("the index is closed")

    sync = begin

"""Values that check themselves: a payload is a function of its key. And a disk whose faults a test scripts."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from headrace.kv.disk import Buffer, Disk
from headrace.kv.local import LocalStore
from headrace.kv.segment import Bytes


def key_of(number: int) -> bytes:
    return hashlib.sha256(b"key %d" % number).digest()


def payload_of(key: bytes, length: int = 5000) -> Bytes:
    return np.frombuffer(hashlib.shake_128(b"payload" + key).digest(length), np.uint8)


def put(store: LocalStore, number: int, length: int = 5000, **fields: object) -> bool:
    key = key_of(number)
    return store.put(key, 0, payload_of(key, length), **fields)  # type: ignore[arg-type]


def found(store: LocalStore, number: int, length: int = 5000) -> bool:
    """Whether a value is there; fails when it is, and wrong."""
    key = key_of(number)
    value = store.get(key, 0)
    assert value is None or np.array_equal(value, payload_of(key, length)), "a wrong byte"
    return value is not None


class FaultyDisk(Disk):
    """Faults by call: ``full_after`` bytes may be written, then ENOSPC; ``fail`` names calls that raise EIO.

    ``short``: every write takes at most so many bytes.
    """

    def __init__(self) -> None:
        self.full_after: int | None = None
        self.short: int | None = None
        self.fail: set[str] = set()

    def _may(self, call: str) -> None:
        if call in self.fail:
            raise OSError(errno.EIO, f"scripted: {call}")

    def write(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        self._may("write")
        data = b"".join(bytes(b) for b in buffers)
        if self.short is not None:
            data = data[: self.short]
        if self.full_after is not None:
            data = data[: self.full_after]
            if not data:
                raise OSError(errno.ENOSPC, "scripted: full")
            self.full_after -= len(data)
        return super().write(fd, [data], offset)

    def read_into(self, fd: int, buffer: memoryview, offset: int) -> int:
        self._may("read")
        return super().read_into(fd, buffer if self.short is None else buffer[: self.short], offset)

    def reserve(self, path: Path, size: int) -> None:
        if self.full_after is not None and self.full_after < size:
            path.touch()
            raise OSError(errno.ENOSPC, "scripted: full")
        super().reserve(path, size)

    def truncate(self, fd: int, size: int) -> None:
        self._may("truncate")
        super().truncate(fd, size)

    def sync(self, fd: int) -> None:
        self._may("sync")
        super().sync(fd)

    def rename(self, old: Path, new: Path) -> None:
        self._may("rename")
        super().rename(old, new)

    def create(self, path: Path) -> int:
        self._may("create")
        return super().create(path)

"""Shared memory that two processes map by a name, and that no death leaves behind. It knows nothing of what is in it.

The name goes as soon as both have mapped it. Its file is locked by whoever made it, as long as it has a name: one that
can be locked was left by a dead engine, and the next start takes it away. The lock decides, not the process number in
the name: numbers are used again, and containers that share the memory do not share them.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
from pathlib import Path

from headrace.contract.errors import StoreError
from headrace.contract.files import lock_named

FOLDER = Path("/dev/shm")
PREFIX = "headrace-kv-"
MODE = 0o600
ATTEMPTS = 8


class SharedMemory:
    """``size`` bytes, zero, all of them there: a machine that lacks them says so now and not at a write.

    Raises StoreError naming the folder.
    """

    def __init__(self, size: int, folder: Path = FOLDER) -> None:
        self.path, fd = _make(folder)
        try:
            os.posix_fallocate(fd, 0, size)
            self.memory = memoryview(mmap.mmap(fd, size, flags=mmap.MAP_SHARED))
        except OSError as error:
            self.path.unlink(missing_ok=True)
            os.close(fd)
            raise StoreError(str(folder), f"{size >> 20} MiB of shared memory: {error.strerror}") from error
        self._fd: int | None = fd

    def forget_name(self) -> None:
        """Nobody else can map it from now on; it goes with the last process that has."""
        if self._fd is not None:
            self.path.unlink(missing_ok=True)
            os.close(self._fd)
            self._fd = None


def _make(folder: Path) -> tuple[Path, int]:
    """A new file that is locked and has its name. A sweep may come between the making and the lock; then another."""
    for _ in range(ATTEMPTS):
        path = folder / f"{PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, MODE)
        except FileExistsError:
            continue
        except OSError as error:
            raise StoreError(str(folder), f"no shared memory can be made there: {error.strerror}") from error
        if lock_named(fd, path):
            return path, fd
        os.close(fd)
    raise StoreError(str(folder), "no shared memory can be made there")


def map_shared(path: Path, size: int) -> memoryview:
    """For the other process. Raises StoreError."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            return memoryview(mmap.mmap(fd, size, flags=mmap.MAP_SHARED))
        finally:
            os.close(fd)
    except (OSError, ValueError) as error:
        raise StoreError(str(path), f"cannot be mapped: {error}") from error


def sweep_orphans(folder: Path = FOLDER) -> int:
    """Takes away what dead engines left. How many; what belongs to others is left alone."""
    swept = 0
    for path in folder.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if lock_named(fd, path):
                    path.unlink()
                    swept += 1
            finally:
                os.close(fd)
    return swept

"""The disk as the store sees it: some fifteen calls, so that a test can script every fault of a real one.

Nothing here decides anything. Every file is for its owner alone (mode 0600), every folder 0700.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

from headrace.contract.files import lock_named

FILE_MODE, FOLDER_MODE = 0o600, 0o700

Buffer = bytes | bytearray | memoryview


class Disk:
    """The real one. Errors are OSError."""

    def make_folder(self, path: Path) -> None:
        """Creates a folder and its parents; its mode is ours even when it was there before."""
        path.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        path.chmod(FOLDER_MODE)

    def create(self, path: Path) -> int:
        """A new file, open for reading and writing; FileExistsError when there is one."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)

    def open(self, path: Path, *, write: bool = False) -> int:
        return os.open(path, (os.O_RDWR if write else os.O_RDONLY) | os.O_CLOEXEC)

    def lock(self, fd: int, path: Path) -> bool:
        """An exclusive lock that ends with the process; false when somebody else has it, or when the file is not at
        ``path`` any more: then nobody would find what is done to it. Never waits."""
        return lock_named(fd, path)

    def write(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        """One gathered write; returns how many bytes were taken, which may be fewer than were given."""
        return os.pwritev(fd, buffers, offset)

    def read_into(self, fd: int, buffer: memoryview, offset: int) -> int:
        """One read; returns how many bytes came, which may be fewer than were asked for."""
        return os.preadv(fd, [buffer], offset)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def reserve(self, path: Path, size: int) -> None:
        """Makes the file, where there is none, and gives its first bytes places on the disk: who maps it may then write
        there. A disk that cannot promise places is taken as it is."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            os.posix_fallocate(fd, 0, size)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
        finally:
            os.close(fd)

    def reserved(self, path: Path) -> int:
        """Bytes of a file that have places on the disk; 0 for one that is not there."""
        try:
            return path.stat().st_blocks * 512
        except FileNotFoundError:
            return 0

    def sync(self, fd: int) -> None:
        os.fdatasync(fd)

    def rename(self, old: Path, new: Path) -> None:
        old.rename(new)

    def remove(self, path: Path) -> None:
        """Unlinks; nothing happens when the file is gone already."""
        path.unlink(missing_ok=True)

    def close(self, fd: int) -> None:
        os.close(fd)


def write_all(disk: Disk, fd: int, buffers: Sequence[Buffer], offset: int) -> None:
    """Writes everything, in as many writes as it takes. Raises OSError; some of it may have been written then."""
    rest = [memoryview(buffer).cast("B") for buffer in buffers]
    while rest:
        taken = disk.write(fd, rest, offset)
        if taken <= 0:
            raise OSError(0, "the disk takes no more bytes")
        offset += taken
        while rest and taken >= len(rest[0]):
            taken -= len(rest.pop(0))
        if rest and taken:
            rest[0] = rest[0][taken:]


def read_all(disk: Disk, fd: int, buffer: memoryview, offset: int) -> bool:
    """Fills the buffer; false when the file ends before."""
    while len(buffer):
        got = disk.read_into(fd, buffer, offset)
        if got <= 0:
            return False
        buffer, offset = buffer[got:], offset + got
    return True

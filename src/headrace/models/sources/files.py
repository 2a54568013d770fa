"""Files that other processes may be reading or writing: locks, checksums, and names that appear only when
whole.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from headrace.contract.errors import PullError
from headrace.contract.files import try_lock

CHUNK_BYTES = 1 << 20
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True, slots=True)
class Checksum:
    """``kind`` is ``sha256`` of the bytes, or ``git``: the SHA-1 by which git names a file's content."""

    kind: str
    hex: str

    def of(self, path: Path) -> str:
        """The checksum that the file at ``path`` has."""
        digest = hashlib.sha256()
        if self.kind == "git":
            digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size)
        with path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
        return digest.hexdigest()


def publish(part: Path, target: Path, checksum: Checksum | None, source: str) -> None:
    """Gives a finished file its final name, if its content is right; removes it and raises PullError if not.

    The bytes are on disk before the name is, so a crash leaves either no file or a whole one.
    """
    if checksum and (found := checksum.of(part)) != checksum.hex:
        part.unlink()
        raise PullError(source, f"{target.name}: wrong {checksum.kind}: {found}, expected {checksum.hex}; removed")
    _sync(part)
    os.replace(part, target)
    _sync(target.parent)


def publish_text(text: str, target: Path) -> None:
    """Writes a small file whole or not at all."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    part.write_text(text, "utf-8")
    publish(part, target, None, str(target))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(file: BinaryIO, data: bytes) -> None:
    """Writes to an unbuffered file, which may take only part of the bytes at a time."""
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


@contextmanager
def disk_errors(path: Path, source: str) -> Iterator[None]:
    """Turns "no space left" into a PullError that names the file and what is free. Partial bytes stay."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        free = shutil.disk_usage(path.parent).free
        raise PullError(source, f"no space to write {path}: {free} bytes free ({error.strerror})") from error


def require_space(path: Path, num_bytes: int, source: str) -> None:
    """Raises PullError when ``num_bytes`` more do not fit on the disk of ``path``."""
    free = shutil.disk_usage(path.parent).free
    if num_bytes > free:
        raise PullError(source, f"no space to write {path}: {num_bytes} bytes needed, {free} free")


@contextmanager
def locked(path: Path, source: str, deadline_s: float = 1800.0) -> Iterator[None]:
    """Holds the lock file at ``path``. The system releases it when the holder dies, however it dies.

    Raises PullError when another process still holds it after ``deadline_s``.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + deadline_s
    with path.open("w") as file:
        while not try_lock(file.fileno()):
            if time.monotonic() > end:
                raise PullError(source, f"another process holds {path} for more than {deadline_s:.0f} s")
            time.sleep(0.05)
        yield


def safe_name(name: str, source: str) -> PurePosixPath:
    """A relative path from a server or an archive. Raises PullError if it would lead out of its folder."""
    path = PurePosixPath(name)
    odd = "\\" in name or "\0" in name or ":" in name
    if odd or path.is_absolute() or not path.parts or any(part in ("..", ".") for part in name.split("/")):
        raise PullError(source, f"refused the file name {name!r}: it leads out of the model's folder")
    return path

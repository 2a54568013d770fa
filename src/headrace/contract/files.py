"""Reading a file that a user or a stranger named: a regular file of sane size, or an error before any byte is read.

A pipe would block for ever, and a device may have no end. Both raise OSError, like everything else that can be wrong
with a file, so whoever reads says in one place which setting or model is at fault. And, before long work, whether its
result can be written; and the lock that a file can be.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from pathlib import Path

# Texts that people write by hand are kilobytes, an index of tensors is megabytes; beyond is some other file.
MAX_TEXT_BYTES = 64 << 20


def require_regular(path: Path) -> None:
    """Raises OSError unless ``path``, links followed, is a regular file. Never opens it."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "is not a regular file", str(path))


def read_small(path: Path, max_bytes: int = MAX_TEXT_BYTES) -> bytes:
    """All bytes of a regular file. Raises OSError when it is no such file or is larger than ``max_bytes``."""
    require_regular(path)
    with path.open("rb") as file:
        data = file.read(max_bytes + 1)  # not the size it claims: that may change, and is 0 for a file of the kernel
    if len(data) > max_bytes:
        raise OSError(errno.EFBIG, f"is larger than {max_bytes} bytes", str(path))
    return data


def require_writable(path: Path) -> None:
    """Raises OSError unless a file can be written there. What it holds stays; what was not there is not there after."""
    target = Path(os.path.realpath(path))  # a link to nothing is made where it points
    if target.is_dir():
        raise OSError(errno.EISDIR, "is a folder", str(path))
    if not target.parent.is_dir():
        raise OSError(errno.ENOENT, f"{target.parent} is not a folder", str(path))
    if not target.exists():
        target.open("xb").close()
        target.unlink()
    elif target.is_file():
        target.open("ab").close()
    elif not os.access(target, os.W_OK):  # opening a pipe would wait for its reader
        raise OSError(errno.EACCES, os.strerror(errno.EACCES), str(path))


def try_lock(descriptor: int) -> bool:
    """Whether nobody else has the file or folder locked; then it is locked, until it is closed or its holder dies."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def lock_named(descriptor: int, path: Path) -> bool:
    """``try_lock``, and whether ``path`` is a name of that file still. Between the opening and the lock whoever had the
    lock before may have renamed or removed it: a file without its name is nobody's to work on."""
    if not try_lock(descriptor):
        return False
    try:
        named = path.stat()
    except FileNotFoundError:
        return False
    mine = os.fstat(descriptor)
    return (named.st_dev, named.st_ino) == (mine.st_dev, mine.st_ino)

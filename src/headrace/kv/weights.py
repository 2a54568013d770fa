"""The digest of a model's files: what makes a store's entries unreachable once the weights are others.

Reading gigabytes at every start would cost more than the store saves, so digests are remembered, by path, size, time
and inode, in a file of the store's. Reads files; loads nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from .disk import FILE_MODE

CHUNK = 1 << 22
WEIGHT_FILES = (".safetensors", ".gguf", ".bin")
OTHER_FILES = ("config.json",)

Memo = dict[str, tuple[int, int, int, str]]
"""Path -> (size, mtime in ns, inode, digest in hex)."""


def model_files(path: Path) -> list[Path]:
    """The file itself, or what shapes a model in its directory, in a fixed order."""
    if path.is_file():
        return [path]
    return sorted(p for p in path.iterdir() if p.suffix in WEIGHT_FILES or p.name in OTHER_FILES)


def weights_digest(files: Sequence[Path], memo_file: Path) -> str:
    """SHA-256 over the files' digests, in hex. Raises OSError for a file that cannot be read."""
    memo = _read_memo(memo_file)
    whole = hashlib.sha256()
    changed = False
    for path in files:
        stat = path.stat()
        known = memo.get(str(path.resolve()))
        facts = (stat.st_size, stat.st_mtime_ns, stat.st_ino)
        if known is None or known[:3] != facts:
            known, changed = (*facts, _file_digest(path)), True
            memo[str(path.resolve())] = known
        whole.update(path.name.encode() + b"\0" + bytes.fromhex(known[3]))
    if changed:
        with contextlib.suppress(OSError):
            _write_memo(memo_file, memo)
    return whole.hexdigest()


def _file_digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _read_memo(path: Path) -> Memo:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Memo)
    except (OSError, msgspec.MsgspecError):
        return {}


def _write_memo(path: Path, memo: Memo) -> None:
    """Whole or not at all: another process may write its own at the same time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(msgspec.json.encode(memo))
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise

"""Where the store of this machine is, how large it may become, and how it is asked for. Opens nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

OFF = "off"
SCHEMES = ("tcp://", "ipc://")
BUCKETS = ("s3://",)
DEFAULT_BYTES = 4 << 30
SHARE_OF_DISK = 0.1  # of what is free when the store is opened
NO_LIMIT = 1 << 62


def is_address(where: str) -> bool:
    """Whether a store is reached through a server, not through a folder."""
    return where.startswith(SCHEMES)


def is_bucket(where: str) -> bool:
    """Whether a store is an object store."""
    return where.startswith(BUCKETS)


def default_folder(cache: Path) -> Path:
    return cache / "kv"


def settle_capacity(folder: Path, asked: int | None, held: int = 0) -> int:
    """Bytes the store may take: what was asked for, else 4 GiB, but no more than a tenth of the disk that is free.

    ``held``: bytes the store takes already, which count as free.
    """
    if asked is not None:
        return asked
    place = folder
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        free = shutil.disk_usage(place).free + held
    except OSError:
        return DEFAULT_BYTES
    return min(DEFAULT_BYTES, int(SHARE_OF_DISK * free))

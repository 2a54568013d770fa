"""Where the store of this machine is, how large it may become, and how it is asked for. Opens nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

from headrace.contract.errors import ConfigError

OFF = "off"
SCHEMES = ("tcp://", "ipc://")
BUCKETS = ("s3://",)
MOONCAKE = "mooncake://"
STRIPED = "striped:"
NUM_STRIPED = 12
DEFAULT_BYTES = 4 << 30
SHARE_OF_DISK = 0.1  # of what is free when the store is opened
NO_LIMIT = 1 << 62


def is_address(where: str) -> bool:
    """Whether a store is reached through a server, not through a folder."""
    return where.startswith(SCHEMES)


def is_bucket(where: str) -> bool:
    """Whether a store is an object store."""
    return where.startswith(BUCKETS)


def is_mooncake(where: str) -> bool:
    """Whether a store is a Mooncake Store, named by its master's address."""
    return where.startswith(MOONCAKE)


def is_striped(where: str) -> bool:
    """Whether a store is spread over twelve others."""
    return where.startswith(STRIPED)


def check_place(where: str) -> None:
    """Raises ConfigError for what looks like an address but is none that is known: nobody means a folder by it."""
    scheme, found, _ = where.partition("://")
    known = (*SCHEMES, *BUCKETS, MOONCAKE)
    if found and f"{scheme}://" not in known:
        raise ConfigError("kv_store", f"{where!r}: must be a folder, {', '.join(known)} or {STRIPED}FILE")
    if not found and "//" in where and not where.startswith(("/", "~", ".")):
        raise ConfigError("kv_store", f"{where!r} is no folder; an address begins with {' or '.join(known)}")


def striped_places(where: str) -> list[str]:
    """The twelve places of ``striped:FILE``: folders and buckets, one a line; what follows a # is a comment.

    Raises ConfigError naming the file.
    """
    path = Path(where.removeprefix(STRIPED)).expanduser()
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("kv_store", f"{path}: {getattr(error, 'strerror', None) or error}") from error
    places = [place for line in lines if (place := line.partition("#")[0].strip())]
    for place in places:
        if is_address(place) or is_striped(place) or is_mooncake(place):
            raise ConfigError("kv_store", f"{path}: a place must be a folder or a bucket, not {place}")
    distinct = {place if is_bucket(place) else str(Path(place).expanduser().resolve()) for place in places}
    if len(places) != NUM_STRIPED or len(distinct) != NUM_STRIPED:
        raise ConfigError("kv_store", f"{path}: names {len(distinct)} different places; {NUM_STRIPED} are needed")
    return places


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

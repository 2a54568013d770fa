"""Where the store of this machine is, how large it may become, and how it is asked for. Opens and writes nothing."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

from headrace.contract.errors import ConfigError, StoreError

OFF = "off"
AUTO = "auto"
SCHEMES = ("tcp://", "ipc://")
BUCKETS = ("s3://",)
MOONCAKE = "mooncake://"
STRIPED = "striped:"
NUM_STRIPED = 12
DEFAULT_BYTES = 4 << 30
SHARE_OF_DISK = 0.1  # of what is free when the store is opened
NO_LIMIT = 1 << 62
SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
ANY_PORT = re.compile(r":(\*|0)$")
INDEX_FILES = ("data.mdb", "lock.mdb")


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


def settle_place(setting: str, environment: str | None, cache: Path) -> str:
    """Where the store is, for engines and for the commands that look after it: as it is set; where that is ``auto``, as
    the environment says; else in the cache folder."""
    return setting if setting != AUTO else environment or str(default_folder(cache))


def check_place(where: str) -> None:
    """Raises ConfigError for what could never be a store, and for what looks like an address but is none that is known:
    nobody means a folder by it."""
    scheme, found, rest = where.partition("://")
    known = (*SCHEMES, *BUCKETS, MOONCAKE)
    if found and f"{scheme}://" not in known:
        raise ConfigError("kv_store", f"{where!r}: must be a folder, {', '.join(known)} or {STRIPED}FILE")
    looks_so = "//" in where or SCHEME.match(where) or any(where.startswith(name.removesuffix("//")) for name in known)
    if not found and looks_so and not where.startswith(("/", "~", ".", STRIPED)):
        raise ConfigError("kv_store", f"{where!r} is no folder; an address begins with {' or '.join(known)}")
    if is_striped(where):
        _list_of_stripes(where)
    elif found:
        _check_address(where, rest)
    elif where != OFF:
        _check_folder(Path(where).expanduser())


def check_address(where: str) -> None:
    """Raises ConfigError for what is no address of a server."""
    scheme, found, rest = where.partition("://")
    if not found or f"{scheme}://" not in SCHEMES:
        raise ConfigError("address", f"{where!r} is none: it must be tcp://HOST:PORT or ipc://PATH")
    _check_address(where, rest, "address")


def check_listening(where: str) -> None:
    """Raises ConfigError for what no server can listen on; a port of 0 or * means any that is free."""
    scheme, found, rest = where.partition("://")
    if not found or f"{scheme}://" not in SCHEMES:
        raise ConfigError("listen", f"{where!r} is no address: it must be tcp://HOST:PORT or ipc://PATH")
    _check_address(where, ANY_PORT.sub(":1", rest), "listen")


def _check_address(where: str, rest: str, field: str = "kv_store") -> None:
    if is_bucket(where):
        if not rest.partition("/")[0]:
            raise ConfigError(field, f"{where!r} names no bucket: s3://BUCKET/PREFIX")
    elif where.startswith("ipc://"):
        if not rest:
            raise ConfigError(field, f"{where!r} names no socket: ipc://PATH")
    else:
        host, colon, port = rest.rpartition(":")
        if not (host and colon and port.isdecimal() and 0 < int(port) < 1 << 16):
            raise ConfigError(field, f"{where!r} needs a host and a port: {where.partition('://')[0]}://HOST:PORT")


def _check_folder(folder: Path) -> None:
    """Raises ConfigError for a folder that is none, or that is somebody else's."""
    try:
        refuse_foreign(folder)
    except StoreError as error:
        raise ConfigError("kv_store", str(error)) from error


def refuse_foreign(folder: Path) -> None:
    """Raises StoreError for a file, and for a folder in which something else is called as the parts of a store are:
    opening a store there would change it."""
    for path in (folder, *folder.parents):
        if path.exists() and not path.is_dir():
            raise StoreError(str(folder), f"{path} is a file" if path != folder else "is a file, not a folder")
    index, segments = folder / "index", folder / "segments"
    if not _only(index, lambda name: name in INDEX_FILES) or not _only(segments, _is_segment):
        raise StoreError(str(folder), "is not a KV store: its index/ or segments/ has other files. Nothing was changed")
    if index.exists() and not segments.exists():
        raise StoreError(str(folder), "is not a KV store: it has index/, but no segments/. Nothing was changed")


def _only(folder: Path, ours: Callable[[str], bool]) -> bool:
    """Whether there is nothing in a folder but what is ours; true for one that is not there or cannot be listed."""
    try:
        return all(ours(path.name) for path in folder.iterdir())
    except FileNotFoundError:
        return True
    except NotADirectoryError:
        return False
    except OSError:
        return True  # opening it will say why


def _is_segment(name: str) -> bool:
    stem, _, suffix = name.partition(".")
    return stem.isdecimal() and suffix in ("part", "seg")


def striped_places(where: str) -> list[str]:
    """The twelve places of ``striped:FILE``: folders and buckets, one a line; what follows a # is a comment.

    Raises ConfigError naming the file.
    """
    path = _list_of_stripes(where)
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


def _list_of_stripes(where: str) -> Path:
    if where == STRIPED:
        raise ConfigError("kv_store", f"{STRIPED} names no file: {STRIPED}FILE, with {NUM_STRIPED} places, one a line")
    return Path(where.removeprefix(STRIPED)).expanduser()


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

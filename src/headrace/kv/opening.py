"""Opens the store at a place, whatever kind it is: for the engine, and for the process that fetches for it.

Which place, and whether there shall be a store at all, is decided elsewhere (``api/kv_launch.py``).
"""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

import msgspec

from headrace.contract.errors import StoreError

from .backend import Backend, Gone
from .client import RemoteStore
from .connector import Store
from .local import LocalStore
from .mooncake import MooncakeStore, open_mooncake
from .objects import ObjectStore, open_bucket
from .place import (
    DEFAULT_BYTES,
    MOONCAKE,
    is_address,
    is_bucket,
    is_mooncake,
    is_striped,
    settle_capacity,
    striped_places,
)
from .shares import PARITY, SHARES
from .striped import StripedStore

log = logging.getLogger("headrace.kv")


class Errand(msgspec.Struct, frozen=True):
    """A store to open. ``name_space``: 16 bytes that values carry; ``size``: bytes it may take, or lends, if asked."""

    place: str
    name_space: bytes
    size: int | None = None
    secret: bytes | None = None

    def reading(self) -> Errand:
        """The same, for a process that stores nothing and lends nothing."""
        return msgspec.structs.replace(self, size=0) if is_mooncake(self.place) else self


def open_store_at(errand: Errand) -> Store:
    """Raises StoreError and OSError; ImportError without the package that the place needs."""
    if is_address(errand.place):
        return RemoteStore(errand.place, secret=errand.secret)
    return _striped(errand) if is_striped(errand.place) else _single(errand)


def _single(errand: Errand) -> ObjectStore | LocalStore:
    """The store in a bucket, a Mooncake Store or a folder."""
    place, space = errand.place, errand.name_space
    if is_mooncake(place):
        return MooncakeStore(open_mooncake(place.removeprefix(MOONCAKE), errand.size), space, where=place)
    if is_bucket(place):
        return ObjectStore(open_bucket(place), space, where=place)
    folder = Path(place).expanduser()
    held = _held(folder / "segments") if errand.size is None else 0
    return LocalStore(folder, settle_capacity(folder, errand.size, held), name_space=space)


def _held(segments: Path) -> int:
    """Bytes of files. Another engine may collect one between the list and the look."""
    held = 0
    for path in segments.glob("*"):
        with contextlib.suppress(FileNotFoundError):
            held += path.stat().st_size
    return held


def _striped(errand: Errand) -> StripedStore:
    """Each of the twelve gets a twelfth of the size that was asked for, or of the default."""
    size = (errand.size or DEFAULT_BYTES) // SHARES
    places: list[Backend] = []
    try:
        for place in striped_places(errand.place):
            places.append(_place_of_stripes(Errand(place, errand.name_space, size)))
        lost = sum(isinstance(place, Gone) for place in places)
        if lost > PARITY:
            raise StoreError(errand.place, f"{lost} of {SHARES} places cannot be opened, {PARITY} at most may be gone")
        return StripedStore(places)
    except BaseException:
        for opened in places:
            opened.close()
        raise


def _place_of_stripes(errand: Errand) -> Backend:
    """One of the twelve; one that cannot be opened is gone, and said to be, until the engine starts again."""
    try:
        return _single(errand)
    except (StoreError, OSError) as error:
        log.warning("a place of the striped KV store is gone: %s", error)
        return Gone()

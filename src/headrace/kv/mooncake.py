"""Values in a Mooncake Store: memory that engines on any number of machines lend to one another, under one master.

A value is an object of ``kv/objects.py`` and checked as such. What an engine lends is gone when it ends, and with it
the values there; a put may be refused when all is full. Both are misses. The master evicts, so nothing is evicted from
here, and it does not list what it holds. Every call has a deadline.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from headrace.contract.errors import StoreError

from .backend import Name
from .objects import LOOKUPS, REQUEST_TIMEOUT_S, ObjectStore

LENT_BYTES = 1 << 30  # unless asked otherwise
TRANSFER_BYTES = 256 << 20  # values on their way
NOT_FOUND, FULL = -704, -200  # of the store's codes; it calls these OBJECT_NOT_FOUND and NO_AVAILABLE_HANDLE

T = TypeVar("T")


class FullError(Exception):
    """There is no room for a value."""


@dataclass(frozen=True, slots=True)
class _Found:
    data: bytes

    @property
    def meta(self) -> dict[str, int]:
        return {"size": len(self.data)}

    def bytes(self) -> bytes:
        return self.data


class MooncakeBucket:
    """A client with the calls of a bucket. ``client``: a MooncakeDistributedStore that is set up."""

    def __init__(self, client: Any, timeout_s: float = REQUEST_TIMEOUT_S) -> None:
        self._client, self._timeout_s = client, timeout_s
        self._threads = ThreadPoolExecutor(LOOKUPS, thread_name_prefix="headrace-kv-mooncake")

    def _ask(self, call: Callable[[], T]) -> T:
        """Its own calls know no deadline. Raises TimeoutError."""
        return self._threads.submit(call).result(self._timeout_s)

    def head(self, path: str) -> dict[str, int]:
        size = self._ask(lambda: self._client.get_size(path))
        if size < 0:
            _raise(size)
        return {"size": size}

    def are_there(self, paths: Sequence[str]) -> list[bool]:
        codes = self._ask(lambda: self._client.batch_is_exist(list(paths)))
        failed = [code for code in codes if code < 0 and code != NOT_FOUND]
        if failed:
            _raise(failed[0])
        return [code == 1 for code in codes]

    def get(self, path: str) -> _Found:
        data = self._ask(lambda: self._client.get(path))
        if not data:  # missing, or a failure: the size says which
            self.head(path)
            raise OSError(f"{path} could not be read")
        return _Found(data)

    def get_range(self, path: str, *, start: int, length: int) -> bytes:
        return self.get(path).data[start : start + length]

    def put(self, path: str, body: bytes, *, mode: str = "create") -> None:
        """What is there stays as it is."""
        del mode
        code = self._ask(lambda: self._client.put(path, body))
        if code != 0:
            _raise(code)

    def delete(self, path: str) -> None:
        code = self._ask(lambda: self._client.remove(path, True))
        if code != 0:
            _raise(code)

    def close(self) -> None:
        with contextlib.suppress(TimeoutError):
            self._ask(self._client.close)
        self._threads.shutdown(wait=False)


def _raise(code: int) -> NoReturn:
    if code == NOT_FOUND:
        raise FileNotFoundError
    raise FullError if code == FULL else OSError(f"Mooncake Store: error {code}")


class MooncakeStore(ObjectStore):
    """A Backend. The bucket is its own from now on."""

    def __init__(self, bucket: MooncakeBucket, name_space: bytes, *, where: str = "a Mooncake Store") -> None:
        super().__init__(bucket, name_space, where=where)

    def has(self, keys: Sequence[Name]) -> list[bool]:
        """One request."""
        none = [False] * len(keys)
        return self._ask(lambda: self._bucket.are_there([self._path(*name) for name in keys]), none) if keys else none

    def names(self) -> Iterator[Name]:
        raise StoreError("Mooncake Store", "cannot be listed")

    def close(self) -> None:
        if not self._closed:
            super().close()
            self._bucket.close()


def open_mooncake(master: str, lent_bytes: int | None) -> MooncakeBucket:
    """Joins the store whose master listens on ``HOST:PORT``, over TCP, and lends it memory.

    Raises StoreError without the package (or the system's libraries it wants), or where there is no master.
    """
    where = f"mooncake://{master}"
    try:
        from mooncake.store import MooncakeDistributedStore
    except ImportError as error:
        raise StoreError(where, f"needs mooncake-transfer-engine-non-cuda ({error})") from error
    client = MooncakeDistributedStore()
    lent = LENT_BYTES if lent_bytes is None else lent_bytes
    code = client.setup(_own_host(master), "P2PHANDSHAKE", lent, TRANSFER_BYTES, "tcp", "", master)
    if code != 0:
        raise StoreError(where, f"cannot be joined (error {code})")
    return MooncakeBucket(client)


def _own_host(master: str) -> str:
    """The address under which others reach this machine: the one from which the master is reached."""
    import socket

    host, _, port = master.rpartition(":")
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, int(port)))
            return str(probe.getsockname()[0])
    except (OSError, ValueError) as error:
        raise StoreError(f"mooncake://{master}", f"is no HOST:PORT that can be reached: {error}") from error

"""Values as objects in a bucket: any S3-compatible store, spoken to through obstore.

An object is a header page and the payload, as in a segment file, so that it says itself what it is; it is uploaded in
one request, so it is there whole or not at all. Objects are kept by the namespace: engines that compute alike share
them. Nothing is evicted from here; the bucket's own lifecycle rules say how long an object lives.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any, TypeVar

import numpy as np

from headrace.contract.errors import StoreError
from headrace.contract.extras import how_to_get

from .ages import CHAT
from .backend import Name, match_along
from .backoff import Backoff
from .counts import Counts
from .health import Health
from .records import RecordSpec, StoreMatch
from .segment import CRC_BYTES, MOST_VALUE_BYTES, PAGE, Bytes, ValueHead, decode_head, encode_head, page_crcs

LOOKUPS = 16  # at once
METADATA = "169.254.169.254"  # where a machine in a cloud may ask who it is
REQUEST_TIMEOUT_S = 5.0

T = TypeVar("T")


class ObjectStore:
    """``bucket``: one of obstore's stores, or what has its methods. ``name_space``: 16 bytes in every name.

    ``where``: what messages call it.
    """

    fast_lookups = False

    def __init__(
        self,
        bucket: Any,
        name_space: bytes,
        *,
        where: str = "an object store",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bucket, self._space, self._backoff = bucket, name_space, Backoff(clock)
        self.counts, self._health = Counts(), Health(where, clock)
        self._lock = threading.Lock()
        self._closed = False
        self._threads = ThreadPoolExecutor(LOOKUPS, thread_name_prefix="headrace-kv-objects")

    def _path(self, key: bytes, kind: int) -> str:
        return f"{self._space.hex()}/{key.hex()[:2]}/{key.hex()}.{kind}"

    # -- one request --------------------------------------------------------------------------------------------

    def _ask(self, work: Callable[[], T], otherwise: T, *, awaited: bool = True) -> T:
        """What a request gives; ``otherwise`` for what is not there, cannot be had, or is not asked for now."""
        if self._closed or not self._backoff.over(awaited=awaited):
            return otherwise
        try:
            found = work()
        except FileNotFoundError:
            found = otherwise
        except Exception as error:  # obstore's errors share no base with Python's; any is a miss
            self.counts.failed_reads += 1
            self._health.failed("a request", _reason(error))
            if not _refusal(error):
                self._backoff.silent()
            return otherwise
        self._backoff.answered()
        self._health.worked("a request")
        return found

    def _there(self, name: Name, *, awaited: bool = True) -> bool:
        return self._ask(lambda: self._bucket.head(self._path(*name))["size"] > PAGE, False, awaited=awaited)

    # -- reading ------------------------------------------------------------------------------------------------

    def has(self, keys: Sequence[Name]) -> list[bool]:
        """One request each, some at once."""
        if self._closed:
            return [False] * len(keys)
        return list(self._threads.map(self._there, keys))

    def match(self, keys: Sequence[bytes], specs: Sequence[RecordSpec], again: bool = False) -> StoreMatch:
        del again  # nobody counts turns here
        end = match_along(keys, specs, self.has, LOOKUPS)
        return StoreMatch(end, self.turn_of(keys[end - 1], int(specs[0].kind)) if end else 0)

    def turn_of(self, key: bytes, kind: int) -> int:
        """The turn a value was stored in; 0 when it is not here."""
        head = self._head(key, kind)
        return 0 if head is None else head.turn

    def _head(self, key: bytes, kind: int) -> ValueHead | None:
        path = self._path(key, kind)
        page = self._ask(lambda: _bytes(self._bucket.get_range(path, start=0, length=PAGE)), None)
        head = None if page is None else decode_head(page)
        same = head is not None and (head.key, head.kind, head.name_space) == (key, kind, self._space)
        if page is not None and not same:
            self._drop_damaged(key, kind)
        return head if same else None

    def get(self, key: bytes, kind: int) -> Bytes | None:
        """The value, checked; None is a miss, whatever the reason."""
        path = self._path(key, kind)
        value = None
        whole = self._ask(lambda: _whole(self._bucket.get(path)), None)
        if whole is not None:
            value = _checked(whole, key, kind, self._space)
            if value is None:
                self._drop_damaged(key, kind)
        self.counts.hits += value is not None
        self.counts.misses += value is None
        return value

    def get_range(self, key: bytes, kind: int, offset: int, length: int) -> Bytes | None:
        """Reads and checks the 64 KiB spans around the part that is asked for."""
        head = self._head(key, kind)
        if head is None or offset < 0 or length <= 0 or offset + length > head.length:
            return None
        first, last = offset // CRC_BYTES, (offset + length - 1) // CRC_BYTES
        start, end = first * CRC_BYTES, min((last + 1) * CRC_BYTES, head.length)
        path = self._path(key, kind)
        spans = self._ask(lambda: _bytes(self._bucket.get_range(path, start=PAGE + start, length=end - start)), None)
        if spans is None:
            return None
        if len(spans) != end - start or page_crcs(spans) != head.crcs[first : last + 1]:
            self._drop_damaged(key, kind)
            return None
        return spans[offset - start : offset - start + length]

    def get_leased(self, lease: int, key: bytes, kind: int) -> Bytes | None:
        del lease
        return self.get(key, kind)

    def release(self, lease: int) -> None:
        """There was none."""

    def _drop_damaged(self, key: bytes, kind: int) -> None:
        self.counts.damaged += 1
        self.delete(key, kind)

    # -- writing ------------------------------------------------------------------------------------------------

    def put(
        self,
        key: bytes,
        kind: int,
        payload: Bytes,
        *,
        tenant: bytes = bytes(16),
        depth: int = 0,
        turn: int = 1,
        ttl_class: int = CHAT,
    ) -> bool:
        """Stores unless it is here; true when it is here afterwards."""
        if not 0 < len(payload) <= MOST_VALUE_BYTES:
            self.counts.failed_puts += 1
            return False
        crcs = page_crcs(payload)
        head = ValueHead(key, kind, len(payload), self._space, tenant, depth, turn, ttl_class, crcs=crcs)
        there = self._there((key, kind), awaited=False)
        stored = there or self._ask(lambda: self._create(head, payload), False, awaited=False)
        self.counts.puts += stored
        self.counts.failed_puts += not stored
        return stored

    def _create(self, head: ValueHead, payload: Bytes) -> bool:
        """Two writers of one name write equal bytes, so whoever is second has lost nothing."""
        body = encode_head(head) + payload.tobytes()
        try:
            self._bucket.put(self._path(head.key, head.kind), body, mode="create")
        except Exception as error:
            if type(error).__name__ not in ("AlreadyExistsError", "PreconditionError"):
                raise
        return True

    def delete(self, key: bytes, kind: int) -> bool:
        path = self._path(key, kind)

        def forget() -> bool:
            self._bucket.head(path)
            self._bucket.delete(path)
            return True

        return self._ask(forget, False, awaited=False)

    # -- looking after it ---------------------------------------------------------------------------------------

    def names(self) -> Iterator[Name]:
        """Raises StoreError when the bucket cannot be listed."""
        try:
            for found in self._bucket.list(self._space.hex()):
                for entry in found:
                    stem, _, kind = entry["path"].rpartition("/")[2].partition(".")
                    with contextlib.suppress(ValueError):  # not one of ours
                        yield bytes.fromhex(stem), int(kind)
        except Exception as error:
            raise StoreError("object store", f"cannot be listed: {error}") from error

    def stat(self) -> dict[str, Any]:
        """Counts of this process. What the bucket holds, its own tools tell."""
        return asdict(self.counts)

    def close(self) -> None:
        with self._lock:
            self._closed = True
        self._threads.shutdown(wait=True, cancel_futures=True)  # requests have deadlines


def open_bucket(url: str) -> Any:
    """obstore's store for ``s3://bucket/prefix``. Endpoint and credentials come from the usual ``AWS_...`` variables.

    Raises StoreError without obstore, or for a URL or settings it refuses. Asks nothing of the server.
    """
    try:
        from obstore.store import S3Store
    except ImportError as error:
        raise StoreError(url, f"needs obstore: {how_to_get('s3')}") from error
    from datetime import timedelta

    timeout = timedelta(seconds=REQUEST_TIMEOUT_S)
    try:
        return S3Store.from_url(
            url,
            client_options={"timeout": timeout, "connect_timeout": timeout, "allow_http": True},
            retry_config={"max_retries": 1, "retry_timeout": timeout},
        )
    except Exception as error:
        raise StoreError(url, f"cannot be opened: {error}") from error


def _bytes(buffer: Any) -> Bytes:
    return np.frombuffer(memoryview(buffer), np.uint8)


def _whole(found: Any) -> Bytes:
    """The object; nothing of one that is larger than any of ours: it is not read, and is as good as damaged."""
    return _bytes(b"" if found.meta["size"] > PAGE + MOST_VALUE_BYTES else found.bytes())


def _checked(whole: Bytes, key: bytes, kind: int, space: bytes) -> Bytes | None:
    head = decode_head(whole[:PAGE])
    if head is None or (head.key, head.kind, head.name_space) != (key, kind, space):
        return None
    value = whole[PAGE:]
    return value if len(value) == head.length and page_crcs(value) == head.crcs else None


def _reason(error: Exception) -> str:
    """One line. Without credentials the library asks the machine's own metadata service, which tells a user nothing."""
    text = f"{type(error).__name__}: {error}"
    if METADATA in text or "credential" in text.lower():
        return "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (AWS_ENDPOINT: not Amazon's)"
    return text


def _refusal(error: Exception) -> bool:
    """Whether the store answered at all: then it need not be left alone."""
    return type(error).__name__ in ("NotSupportedError", "InvalidPathError", "FullError")

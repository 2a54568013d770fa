"""Taking requests in: bodies bounded in size, number and time, and the work on them kept from holding others up.

The event loop does small things only. What is large is decoded and tokenized on a thread of its own, one after the
other, so that small requests never queue behind large ones. Pictures are large whatever their bytes: a file of some
kilobytes can hold 2^25 pixels. Tenants take turns at both kinds of work, and none may use up what there is for all.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import ParamSpec, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from ..protocol.decode import decode
from ..protocol.picture_parts import shows_pictures
from .errors import RETRY_AFTER_S, HttpError
from .lane import Lane
from .tenants import tenant_of

LARGE_BYTES = 1 << 16
MAX_LARGE = 32  # large pieces of work under way or waiting
MAX_SMALL = 256  # likewise of small ones, where not more sequences may be open
SMALL_THREADS = 4
LEAST_RATE = 1 << 14  # bytes a second; what comes slower, on the whole, holds its memory and its place for too long
HELD_BODIES = 16  # of full size, as many bytes as are held for all requests that are being read

Body = TypeVar("Body", bound=msgspec.Struct)
Args = ParamSpec("Args")
Made = TypeVar("Made")


class Work:
    """One kind of it: at most ``most`` pieces under way or waiting, of one tenant half of that."""

    def __init__(self, lane: Lane, most: int, what: str) -> None:
        self.lane = lane
        self._most = most
        self._what = what
        self._counts = Counter[str]()  # by owner

    async def do(self, owner: str, work: Callable[[], Made]) -> Made:
        """Raises HttpError (429) and what ``work`` does."""
        if _full(self._counts, owner, self._most - 1):
            raise _too_many(self._what)
        self._counts[owner] += 1
        try:
            return await asyncio.wrap_future(self.lane.submit(owner, work))
        finally:
            _give_back(self._counts, owner, 1)


class Intake:
    """``max_bytes``: of one body. ``silence_s``: a client that sends nothing for so long is let go; so is one that
    falls so far behind ``LEAST_RATE``. ``max_open``: sequences that may be open; so many small requests may be read."""

    def __init__(self, max_bytes: int, silence_s: float, max_open: int = MAX_SMALL) -> None:
        self._max_bytes = max_bytes
        self._silence_s = silence_s
        self._held = Counter[str]()  # bytes, by owner
        self._large = Work(Lane(), MAX_LARGE, "large requests")
        self._small = Work(Lane(SMALL_THREADS, "small-bodies"), max(MAX_SMALL, max_open), "requests")

    async def read(self, request: Request, schema: type[Body]) -> Body:
        """The body as ``schema``. Raises HttpError (408, 413, 415, 429) and InvalidRequest."""
        _check_type(request)
        raw = bytearray()
        try:
            await self._fill(raw, request)
            request.state.large = len(raw) >= LARGE_BYTES
            if request.state.large:
                return await self.work(request, decode, bytes(raw), schema)
            body = decode(bytes(raw), schema)
            request.state.large = shows_pictures(body)
            return body
        finally:
            _give_back(self._held, _owner(request), len(raw))

    async def work(
        self, request: Request, work: Callable[Args, Made], /, *args: Args.args, **fields: Args.kwargs
    ) -> Made:
        """``work`` on what ``request`` brought, off the event loop. Raises HttpError (429) and what ``work`` does."""
        kind = self._large if request.state.large else self._small
        return await kind.do(_owner(request), partial(work, *args, **fields))

    def close(self) -> None:
        """What is under way runs on; what waits is dropped."""
        self._large.lane.close()
        self._small.lane.close()

    async def _fill(self, raw: bytearray, request: Request) -> None:
        length = request.headers.get("content-length", "0")
        if length.isdecimal() and int(length) > self._max_bytes:
            raise _too_large(self._max_bytes)
        began, owner, chunks = time.monotonic(), _owner(request), aiter(request.stream())
        while (chunk := await self._next(chunks, began + len(raw) / LEAST_RATE - time.monotonic())) is not None:
            raw += chunk
            self._held[owner] += len(chunk)
            if len(raw) > self._max_bytes:
                raise _too_large(self._max_bytes)
            if _full(self._held, owner, HELD_BODIES * self._max_bytes):
                raise _too_many("large requests")

    async def _next(self, chunks: AsyncIterator[bytes], ahead_s: float) -> bytes | None:
        """``ahead_s``: how far the body is ahead of the slowest one that is waited for; negative: behind."""
        try:
            async with asyncio.timeout(self._silence_s + min(0.0, ahead_s)):
                return await anext(chunks, None)
        except ClientDisconnect:
            raise HttpError(400, "the client went away before its request was complete") from None
        except TimeoutError:
            raise HttpError(408, f"the rest of the body did not come within {self._silence_s:g} s") from None


def _owner(request: Request) -> str:
    """Who answers for what is held: a tenant, or nobody in particular."""
    tenant = tenant_of(request)
    return "" if tenant is None else tenant.name


def _full(counts: Counter[str], owner: str, most: int) -> bool:
    """More than ``most`` in all, or more than half of it for one tenant."""
    return counts.total() > most or (owner != "" and counts[owner] > most // 2)


def _give_back(counts: Counter[str], owner: str, amount: int) -> None:
    counts[owner] -= amount
    if not counts[owner]:
        del counts[owner]


def _check_type(request: Request) -> None:
    """JSON must be named as such: a page of another origin can send anything else without asking first."""
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given != "application/json" and not given.endswith("+json"):
        raise HttpError(415, f"the content type must be application/json, got {given!r}")


def _too_large(max_bytes: int) -> HttpError:
    return HttpError(413, f"the body exceeds {max_bytes} bytes", code="request_too_large")


def _too_many(what: str) -> HttpError:
    words = f"too many {what} are being read; try again later"
    return HttpError(429, words, kind="rate_limit_error", code="queue_full", retry_after_s=RETRY_AFTER_S)

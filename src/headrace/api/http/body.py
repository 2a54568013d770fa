"""Reading a request's body: bounded in size, JSON by its content type."""

from __future__ import annotations

import asyncio
from typing import TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from ..protocol.decode import decode
from .errors import HttpError

LARGE_BYTES = 1 << 16  # decoding more than this would hold up the other streams

Body = TypeVar("Body", bound=msgspec.Struct)


async def read(request: Request, schema: type[Body], max_bytes: int) -> Body:
    """The body as ``schema``. Raises HttpError (413, 415) and InvalidRequest."""
    _check_type(request)
    raw = await _read_bytes(request, max_bytes)
    if len(raw) > LARGE_BYTES:
        return await asyncio.to_thread(decode, raw, schema)
    return decode(raw, schema)


def _check_type(request: Request) -> None:
    """JSON must be named as such: a page of another origin can send anything else without asking first."""
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given != "application/json" and not given.endswith("+json"):
        raise HttpError(415, f"the content type must be application/json, got {given!r}")


async def _read_bytes(request: Request, max_bytes: int) -> bytes:
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and int(length) > max_bytes:
        raise _too_large(max_bytes)
    raw = bytearray()
    try:
        async for chunk in request.stream():
            raw += chunk
            if len(raw) > max_bytes:
                raise _too_large(max_bytes)
    except ClientDisconnect:
        raise HttpError(400, "the client went away before its request was complete") from None
    return bytes(raw)


def _too_large(max_bytes: int) -> HttpError:
    return HttpError(413, f"the body exceeds {max_bytes} bytes", code="request_too_large")

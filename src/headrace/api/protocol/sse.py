"""Server-sent events as bytes. A comment keeps a silent connection open; clients skip it."""

from __future__ import annotations

from typing import Any

import msgspec

KEEP_ALIVE = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"

_encode = msgspec.json.Encoder().encode


def to_json(value: Any) -> bytes:
    """Compact JSON."""
    return _encode(value)


def data(value: Any) -> bytes:
    """One nameless event."""
    return b"data: " + _encode(value) + b"\n\n"


def event(name: str, value: Any) -> bytes:
    """One named event."""
    return b"event: " + name.encode() + b"\ndata: " + _encode(value) + b"\n\n"

"""Whole bodies, sent in pieces: a request is not over before its client has room for the last piece of its answer.

Given to the transport at once, a large body would be one that nobody waits for: its connection counts as idle, and ends
with its time however steadily the client reads. Never changes what is sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

PIECE_BYTES = 1 << 16


def pieces(body: bytes) -> Iterator[dict[str, Any]]:
    """ASGI's messages for the body, the last one marked as such. At least one."""
    for start in range(0, max(len(body), 1), PIECE_BYTES):
        end = start + PIECE_BYTES
        yield {"type": "http.response.body", "body": body[start:end], "more_body": end < len(body)}


class PiecedResponse(Response):
    """A response whose body is known, and may be large."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002  # ASGI's shape
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for message in pieces(bytes(self.body)):
            await send(message)

"""Replies that live as long as their client: when it goes, streaming or not, its work is aborted at once.

A stream that began with 200 ends in one of two ways: its protocol's end, or an error event. Never the first when the
engine failed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headrace.contract.errors import HeadraceError

from ..protocol.news import News, Reply
from ..protocol.sse import KEEP_ALIVE, to_json
from .errors import as_http
from .host import HostLimits
from .hosted_generation import HostedGeneration
from .pieces import pieces

STREAM_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}

LOOKS = 4  # at a client in the time it has: it is let go at most a quarter of that late

log = logging.getLogger("headrace.serve")


class GenerationResponse(Response):
    """Base of both: watches the client while ``serve`` runs; closes the generation whatever happens."""

    def __init__(self, generation: HostedGeneration, reply: Reply, limits: HostLimits, headers: dict[str, str]) -> None:
        self.generation = generation
        self.reply = reply
        self.limits = limits
        self.background = None
        self.status_code = 200
        self._sending_since: float | None = None
        self._told_s = 0.0  # when something was sent last
        self._extra_headers = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002  # ASGI's shape
        try:
            await while_connected(receive, self.serve(send), self._stuck, self.limits.write_timeout_s / LOOKS)
        finally:
            self.generation.close()

    async def serve(self, send: Send) -> None:
        raise NotImplementedError

    async def _send(self, send: Send, message: dict[str, Any]) -> None:
        """Waits while the client's buffers are full; ``_stuck`` sees to it that this is not for ever. (A timeout of its
        own for each piece costs a tenth of what a streamed token does here.)"""
        self._sending_since = self._told_s = time.monotonic()
        await send(message)
        self._sending_since = None

    def _stuck(self) -> bool:
        """The client has taken nothing for too long."""
        since = self._sending_since
        return since is not None and time.monotonic() - since > self.limits.write_timeout_s

    async def _start(self, send: Send, status: int, headers: dict[str, str]) -> None:
        pairs = [(k.encode(), v.encode()) for k, v in {**self._extra_headers, **headers}.items()]
        await self._send(send, {"type": "http.response.start", "status": status, "headers": pairs})


class StreamReply(GenerationResponse):
    """Server-sent events."""

    async def serve(self, send: Send) -> None:
        self.generation.keeps_rows = False
        await self.generation.turn()
        first = await self._certain_start()
        await self._start(send, 200, STREAM_HEADERS)
        await self._write(send, self.reply.begin(self.generation.outputs))
        try:
            await self._write(send, b"".join(map(self.reply.news, first)))
            await self._stream(send)
            last = self.reply.end(self.generation.outputs, self.generation.usage)
        except HeadraceError as error:
            last = self._error(error)
        except Exception as error:
            log.exception("a stream failed")
            last = self._error(error)
        await self._send(send, {"type": "http.response.body", "body": last, "more_body": False})

    async def _certain_start(self) -> list[News]:
        """A constraint is only known to be good once the engine has compiled it: until then 400 must be possible."""
        first: list[News] = []
        while self.generation.constrained and not (self.generation.finished or any(one.token_ids for one in first)):
            first += await self.generation.news(self.limits.keep_alive_s)
        return first

    def _error(self, error: Exception) -> bytes:
        spoken = as_http(error)
        return self.reply.error(str(spoken), spoken.kind)

    async def _stream(self, send: Send) -> None:
        patience_s = self.limits.keep_alive_s
        while not self.generation.finished:
            body = b"".join(map(self.reply.news, await self.generation.news(patience_s)))
            patience_s = self.limits.keep_alive_s
            if not body:  # no token came, or none that may be told yet, as within a call
                patience_s -= time.monotonic() - self._told_s
            if patience_s <= 0:
                body, patience_s = KEEP_ALIVE, self.limits.keep_alive_s
            await self._write(send, body)

    async def _write(self, send: Send, body: bytes) -> None:
        if body:
            await self._send(send, {"type": "http.response.body", "body": body, "more_body": True})


class WholeReply(GenerationResponse):
    """One JSON body at the end. What fails before it is raised: the application words it for the route."""

    async def serve(self, send: Send) -> None:
        await self.generation.turn()
        while not self.generation.finished:
            for one in await self.generation.news(self.limits.keep_alive_s):
                self.reply.note(one)
        body = to_json(self.reply.whole(self.generation.outputs, self.generation.usage))
        await self._start(send, 200, {"content-type": "application/json", "content-length": str(len(body))})
        for message in pieces(body):
            await self._send(send, message)


async def while_connected(
    receive: Receive,
    work: Coroutine[Any, Any, None],
    stuck: Callable[[], bool] = lambda: False,
    look_s: float | None = None,
) -> None:
    """Runs ``work`` until it is done, the client is gone, or ``stuck`` says so when asked every ``look_s``; then it is
    cancelled. Its errors are raised here."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(receive))
    try:
        ended: set[asyncio.Future[None]] = set()
        while not ended and not stuck():
            ended, _ = await asyncio.wait({task, gone}, timeout=look_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
        if not task.done():
            task.cancel()
        await _settled(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        raise error


async def _settled(task: Awaitable[None]) -> None:
    await asyncio.gather(task, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

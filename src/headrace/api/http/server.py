"""The server: a socket, uvicorn around the application, and an orderly end.

The first SIGTERM or SIGINT drains: new work is refused with 503, open requests run to their end or to the deadline.
A second one ends at once.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import socket
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType

import uvicorn
from fastapi import FastAPI

from headrace.contract.errors import ConfigError

from .connections import bounded
from .host import EngineHost

BACKLOG = 2048


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Where to listen. ``drain_s``: how long open requests may take to finish once asked to stop."""

    host: str = "127.0.0.1"
    port: int = 8000
    tls_cert: str | None = None
    tls_key: str | None = None
    drain_s: float = 30.0


def listen(settings: ServerSettings) -> socket.socket:
    """A bound socket, before any model is loaded. Raises ConfigError when the address cannot be had."""
    try:
        family = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0][0]
        bound = socket.socket(family, socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((settings.host, settings.port))
    except (OSError, OverflowError) as error:
        words = f"cannot listen on {settings.host} port {settings.port}: {error}; --port 0 takes a free one"
        raise ConfigError("port", words) from error
    return bound


def address(settings: ServerSettings, bound: socket.socket) -> str:
    """What to put before a route: ``http://127.0.0.1:8000``."""
    name = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"{'https' if settings.tls_cert else 'http'}://{name}:{bound.getsockname()[1]}"


class Server(uvicorn.Server):
    """uvicorn with draining in place of its own signal handling."""

    def __init__(
        self, app: FastAPI, host: EngineHost, settings: ServerSettings, on_started: Callable[[], None] | None = None
    ) -> None:
        config = uvicorn.Config(
            app,
            http=bounded(host.limits.write_timeout_s),
            log_level="warning",
            access_log=False,
            backlog=BACKLOG,
            ssl_certfile=settings.tls_cert,
            ssl_keyfile=settings.tls_key,
            timeout_graceful_shutdown=5,
            server_header=False,
            lifespan="on",
        )
        super().__init__(config)
        self._host = host
        self._drain_s = settings.drain_s
        self._on_started = on_started
        self._draining: asyncio.Task[None] | None = None
        self._signals = 0
        self._main: asyncio.AbstractEventLoop | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        self._main = asyncio.get_running_loop()
        await super().serve(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and self._on_started is not None:
            self._on_started()  # from here on connections are answered

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002  # uvicorn's signature
        """A signal came; runs between two bytecodes of the main thread."""
        self._signals += 1
        if self._signals > 1:
            self.should_exit = self.force_exit = True
            for child in multiprocessing.active_children():
                child.kill()  # else its orderly end would be waited for
        elif self._main is not None:
            self._main.call_soon_threadsafe(self.begin_drain)

    def begin_drain(self) -> None:
        """On the loop."""
        if self._draining is None:
            self._draining = asyncio.ensure_future(self._drain())

    async def _drain(self) -> None:
        if not await self._host.drain(self._drain_s):
            await asyncio.to_thread(self._host.llm.close)  # ends open streams with an error event
        self.should_exit = True


def run(server: Server, host: EngineHost, bound: socket.socket) -> None:
    """Serves until told to stop; the engine is gone when this returns."""
    try:
        server.run([bound])
    finally:
        host.close()

"""The server: a socket, uvicorn around the application, and an orderly end.

The first SIGTERM, SIGINT or SIGHUP drains: new work is refused with 503, open requests run to their end or to the
deadline. A second one ends them at once, each with its protocol's error. Nothing here waits for a client for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import multiprocessing
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

import uvicorn
from fastapi import FastAPI

from headrace.contract.errors import ConfigError

from .connections import bounded
from .host import EngineHost

BACKLOG = 2048
IDLE_S = 20  # of a connection between requests: clients drop theirs after 5 to 15 s, and should be the first to
ASKS_TO_STOP = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LEAVING_S = 5  # for connections to close once all is answered
HURRIED_S = 1  # as above, after a second signal


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
        # Without the protocol's number asyncio leaves Nagle's algorithm on: answers then wait 40 ms for a client's ack.
        bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
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
    """uvicorn with draining in place of its own signal handling. ``say``: gets remarks for whoever started it."""

    def __init__(
        self,
        app: FastAPI,
        host: EngineHost,
        settings: ServerSettings,
        on_started: Callable[[], None] | None = None,
        say: Callable[[str], None] | None = None,
    ) -> None:
        config = uvicorn.Config(
            app,
            http=bounded(host.limits.write_timeout_s),
            log_level="warning",
            access_log=False,
            backlog=BACKLOG,
            ssl_certfile=settings.tls_cert,
            ssl_keyfile=settings.tls_key,
            timeout_keep_alive=IDLE_S,
            timeout_graceful_shutdown=LEAVING_S,
            server_header=False,
            lifespan="on",
        )
        super().__init__(config)
        self._host = host
        self._drain_s = settings.drain_s
        self._on_started = on_started
        self._say = say or (lambda _words: None)
        self._draining: asyncio.Task[None] | None = None
        self._signals = 0
        self._ending = False
        self._main: asyncio.AbstractEventLoop | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        self._main = asyncio.get_running_loop()
        if self._signals:  # one came before there was a loop
            self.begin_drain()
        await super().serve(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and self._on_started is not None:
            self._on_started()  # from here on connections are answered

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """``heeding_signals`` does, for longer than uvicorn would."""
        yield

    @contextmanager
    def heeding_signals(self) -> Iterator[None]:
        """For the main thread. A hang-up that whoever started us wants ignored (nohup) stays so."""
        before = {number: signal.getsignal(number) for number in ASKS_TO_STOP}
        heeded = [n for n in ASKS_TO_STOP if n != signal.SIGHUP or before[n] is not signal.SIG_IGN]
        for number in heeded:
            signal.signal(number, self.handle_exit)
        try:
            yield
        finally:
            for number in heeded:
                signal.signal(number, before[number])

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002  # uvicorn's signature
        """A signal came; runs between two bytecodes of the main thread."""
        self._signals += 1
        posted = self._post(self.begin_drain if self._signals == 1 else self.end_at_once)
        if self._signals > 2 or (self.hurried and not posted):  # a third: the loop itself stands still
            kill_children()

    @property
    def hurried(self) -> bool:
        """Whoever stops it has asked twice."""
        return self._signals > 1

    def _post(self, work: Callable[[], None]) -> bool:
        """On the loop. False when that is over."""
        with contextlib.suppress(RuntimeError):
            if self._main is not None:
                self._main.call_soon_threadsafe(work)
                return True
        return False

    def begin_drain(self) -> None:
        """On the loop."""
        if self._draining is not None:
            return
        if count := self._host.num_requests:
            again = "Ctrl-C again ends at once"
            self._say(f"finishing {_requests(count)}, at most {self._drain_s:g} s; {again}")
        self._draining = asyncio.ensure_future(self._drain())

    def end_at_once(self) -> None:
        """On the loop. While requests are open ``_drain`` goes on: they hear that the server stops, and not that an
        engine was killed."""
        if self._ending:
            return
        self._ending = True
        count = self._host.num_requests
        self._say(f"ending at once{f': {_requests(count)} cut short' if count else ''}")
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # it would show where each of them was cut
        self.config.timeout_graceful_shutdown = HURRIED_S
        self._host.hurry()
        if self._draining is None or self._draining.done():
            kill_children()

    async def _drain(self) -> None:
        if not await self._host.drain(self._drain_s):
            if not self._ending:
                self._say(f"{self._drain_s:g} s are over: {_requests(self._host.num_requests)} cut short")
            await self._host.end_open()
        if self.hurried:
            kill_children()
        self.should_exit = True


def kill_children() -> None:
    """For whoever asked twice: the orderly end of an engine would be waited for."""
    for child in multiprocessing.active_children():
        child.kill()


def _requests(count: int) -> str:
    return f"{count} request{'s' if count > 1 else ''}"


def run(server: Server, host: EngineHost, bound: socket.socket) -> None:
    """Serves until told to stop; the engine is gone when this returns. For the main thread."""
    with server.heeding_signals():
        try:
            server.run([bound])
        finally:
            if server.hurried:  # the loop may have ended before it saw that
                kill_children()
            host.close()

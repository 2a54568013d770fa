"""Connections that serve nobody are ended: one that sends no whole request, one that takes nothing of its answers.

uvicorn waits for both without end, and each holds a descriptor; when those are used up nobody else can connect. Says
nothing to such a client and never touches a connection whose request is being answered to somebody. And a client that
goes away is noticed whatever it sent before: behind a request uvicorn stops reading as soon as there is one more byte.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

ASIDE_BYTES = 1 << 16  # of what comes before its turn

Base: Any = H11Protocol  # also where httptools is installed: it starts on the request behind the one being answered


def bounded(patience_s: float) -> Any:
    """uvicorn's protocol for HTTP, with patience for this long and no longer."""
    return type("BoundedProtocol", (BoundedProtocol,), {"period_s": patience_s / 2})


class BoundedProtocol(Base):  # type: ignore[misc]
    """Looks at itself every ``period_s``: what serves nobody and was the same the last time is over."""

    period_s = 30.0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._seen: tuple[bool, object, int] | None = None
        self._aside = b""
        self._look_later()

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """What comes behind a request that is being answered is kept for later, and reading goes on: the end of the
        connection is read, too."""
        if self._answering:
            self._aside += data
            if len(self._aside) > ASIDE_BYTES:
                self.flow.pause_reading()
            return
        super().data_received(data)
        if self._answering:
            self.flow.resume_reading()

    def on_response_complete(self) -> None:
        super().on_response_complete()  # it may have had the next request already
        data, self._aside = self._aside, b""
        if data and not self.transport.is_closing():
            self.data_received(data)

    @property
    def _answering(self) -> bool:
        cycle = self.cycle
        return cycle is not None and not cycle.more_body and not cycle.response_complete

    def _look_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self.period_s, self._look)

    def _look(self) -> None:
        state = self._serving_nobody()
        if state is not None and state == self._seen:
            self.transport.abort()  # what is still to be sent is dropped: nobody has taken it for so long
            return
        self._seen = state
        self._look_later()

    def _serving_nobody(self) -> tuple[bool, object, int] | None:
        """Whether it is closing, the last request, and the bytes still to be sent; None while one is being answered
        and there is room for more of its answer. (Under TLS the bytes stay the same until 48 KiB were taken.)"""
        closing, cycle = self.transport.is_closing(), self.cycle
        done = cycle is None or cycle.response_complete
        unsent = self.transport.get_write_buffer_size()
        return (closing, cycle, unsent) if closing or done or self.flow.write_paused else None

"""Connections that serve nobody are ended: one that sends no whole request, one that was closed but takes nothing.

uvicorn waits for both without end, and each holds a descriptor; when those are used up nobody else can connect. Says
nothing to such a client and never touches a connection whose request is being answered.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

Base: Any = AutoHTTPProtocol


def bounded(patience_s: float) -> Any:
    """uvicorn's protocol for HTTP, with patience for this long and no longer."""
    return type("BoundedProtocol", (BoundedProtocol,), {"period_s": patience_s / 2})


class BoundedProtocol(Base):  # type: ignore[misc]
    """Looks at itself every ``period_s``: what serves nobody and was the same the last time is over."""

    period_s = 30.0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._seen: tuple[bool, object] | None = None
        self._look_later()

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        super().connection_lost(exc)

    def _look_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self.period_s, self._look)

    def _look(self) -> None:
        state = self._serving_nobody()
        if state is not None and state == self._seen:
            self.transport.abort()  # what is still to be sent is dropped: nobody has taken it for so long
            return
        self._seen = state
        self._look_later()

    def _serving_nobody(self) -> tuple[bool, object] | None:
        """Whether it is closing, and the last request; None while one is being answered."""
        closing, cycle = self.transport.is_closing(), self.cycle
        done = cycle is None or cycle.response_complete
        return (closing, cycle) if closing or done else None

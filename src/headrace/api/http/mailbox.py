"""Mailbox: deltas from the engine's thread to the task that serves a request."""

from __future__ import annotations

import asyncio
from collections import deque

from headrace.contract.result import TokenDelta


class Mailbox:
    """``deliver`` from any thread; ``take`` from one task of the loop. Cheaper than a queue with a timeout per item."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._items: deque[TokenDelta] = deque()  # append and popleft are atomic
        self._waiter: asyncio.Future[None] | None = None

    def deliver(self, delta: TokenDelta) -> None:
        self._items.append(delta)
        self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        """A call may come late, for items that were taken already: only items count as news."""
        if self._items:
            self._release()

    def wake(self) -> None:
        """Ends a ``take`` at once, with what there is."""
        self._release()

    def _release(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def take(self, timeout_s: float) -> list[TokenDelta]:
        """All that has arrived, waiting for the first; empty after ``timeout_s`` seconds of silence."""
        if not self._items:
            self._waiter = self._loop.create_future()
            timer = self._loop.call_later(timeout_s, self._release)
            try:
                await self._waiter
            finally:
                timer.cancel()
                self._waiter = None
        return self.drain()

    def drain(self) -> list[TokenDelta]:
        """All that has arrived, at once."""
        taken = []
        while self._items:
            taken.append(self._items.popleft())
        return taken

"""Turns: an engine behind a client, taken turn by turn, as a synchronous front takes an engine of its own.

One thread submits and takes turns; the deltas come from the client's threads through a queue. It never waits longer
than ``TURN_S`` in a turn, so that its caller can look whether to go on.
"""

from __future__ import annotations

import queue

from headrace.contract.request import Request
from headrace.contract.result import TokenDelta
from headrace.contract.stats import EngineStats

from .client import EngineClient

TURN_S = 0.1


class Turns:
    """``max_open``: requests that may be open at once; the bound of the queue behind them."""

    def __init__(self, client: EngineClient, max_open: int) -> None:
        self.client = client
        self._max_open = max_open
        self._news: queue.SimpleQueue[TokenDelta] = queue.SimpleQueue()
        self._open: set[str] = set()
        self.closed = False

    def rest(self, timeout_s: float) -> None:
        """Nothing to do: a turn waits for news itself."""

    @property
    def quiet(self) -> bool:
        """Every request has had its last delta."""
        return not self._open

    @property
    def stats(self) -> EngineStats:
        """The sum over the engines behind the client."""
        return self.client.stats

    def accepts(self, count: int) -> bool:
        return len(self._open) + count <= self._max_open

    def submit(self, request: Request) -> None:
        """Raises EngineDead with the reason when the engine is gone."""
        self.client.submit(request, self._news.put)
        self._open.add(request.request_id)

    def abort(self, request_id: str) -> None:
        self.client.abort(request_id)

    def stop(self, request_id: str) -> None:
        self.client.stop(request_id)

    def tick(self) -> list[TokenDelta]:
        """The news that has come, or comes within ``TURN_S``."""
        try:
            deltas = [self._news.get(timeout=TURN_S)]
            while not self._news.empty():
                deltas.append(self._news.get())
        except queue.Empty:
            return []
        self._open.difference_update(delta.request_id for delta in deltas if delta.finish_reason is not None)
        return deltas

    def close(self) -> None:
        self.closed = True
        self.client.close()

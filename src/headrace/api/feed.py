"""Feed: prompts on their way through one engine, as many at a time as it takes; what comes back is assembled.

The one loop behind every synchronous front. Prompts are pulled lazily, so an endless source needs bounded memory.
Not thread-safe, and never more than one feed at a time on an engine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Protocol

from headrace.contract.errors import EngineDead, InvalidRequest
from headrace.contract.request import Request
from headrace.contract.result import TokenDelta

from .assembly import Assembly
from .interrupts import uninterrupted
from .output import RequestOutput
from .prompts import Prepared
from .text.tokenizer import Tokenizer


class Turning(Protocol):
    """What a feed needs of an engine: here, or behind a client (``engine/turns.py``)."""

    @property
    def closed(self) -> bool: ...
    @property
    def quiet(self) -> bool: ...
    def accepts(self, count: int) -> bool: ...
    def submit(self, request: Request) -> None: ...
    def abort(self, request_id: str) -> None: ...
    def stop(self, request_id: str) -> None: ...
    def tick(self) -> list[TokenDelta]: ...
    def rest(self, timeout_s: float) -> None: ...


REST_S = 0.05  # longest sleep of a feed whose requests all wait for something; what they wait for wakes it


class Feed:
    """``window``: how many sequences may be open, waiting ones included; None: as many as the engine takes."""

    def __init__(
        self, engine: Turning, tokenizer: Tokenizer | None, source: Iterator[Prepared], window: int | None = None
    ) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._source: Iterator[Prepared] | None = source
        self._window = window
        self._unsent: deque[Request] = deque()
        self._open: dict[str, Assembly] = {}  # by request id, sent or not

    def turns(self) -> Iterator[list[RequestOutput]]:
        """One turn of the engine at a time: the outputs that grew in it, often none.

        The objects are live. Each is seen exactly once with ``finished`` set, and not again. When the caller stops
        early, what is open is aborted and the engine is left clean.
        """
        try:
            self._refill()
            while self._open:
                yield self._turn()
                self._refill()
        finally:
            self._abort_open()

    def _refill(self) -> None:
        while self._engine.accepts(1):
            if not self._unsent and not self._pull():
                return
            self._engine.submit(self._unsent.popleft())

    def _pull(self) -> bool:
        """Opens the next prompt, if there is one and it is wanted now."""
        if self._source is None or (self._window is not None and len(self._open) >= self._window):
            return False
        prepared = next(self._source, None)
        if prepared is None:
            self._source = None
            return False
        if any(request.request_id in self._open for request in prepared.requests):
            raise InvalidRequest("prepared", f"{prepared.request_id} is on its way already; prepare the prompt again")
        assembly = Assembly(prepared, self._tokenizer)
        self._open.update({request.request_id: assembly for request in prepared.requests})
        self._unsent.extend(prepared.requests)
        return True

    def _turn(self) -> list[RequestOutput]:
        if self._engine.closed:
            raise EngineDead("the engine was closed while it was generating")
        news: dict[int, RequestOutput] = {}
        with uninterrupted():
            deltas = self._engine.tick()
            if not deltas:
                self._engine.rest(REST_S)  # a grammar compiles, KV is fetched: turning on would take their time
        for delta in deltas:
            output = self._take(delta)
            if output is not None:
                news[id(output)] = output
        return list(news.values())

    def _take(self, delta: TokenDelta) -> RequestOutput | None:
        """The output that grew; None when it was complete before (its text ended at a stop string)."""
        assembly = self._open[delta.request_id]
        was_finished = assembly.output.finished
        if assembly.push(delta):
            self._engine.stop(delta.request_id)
        if delta.finish_reason is not None:
            del self._open[delta.request_id]
        return None if was_finished else assembly.output

    def _abort_open(self) -> None:
        if not self._open or self._engine.closed:
            return
        for request_id in self._open:
            self._engine.abort(request_id)
        while not self._engine.quiet:
            self._engine.tick()
        self._open.clear()

"""EngineClient: how a front reaches an engine, in this process (here) or in another (``process``).

Deltas of a request arrive at its sink, in order, from a thread of the client's; the last one has a finish reason.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Protocol

from headrace.contract.errors import EngineDead
from headrace.contract.request import Request
from headrace.contract.result import TokenDelta
from headrace.contract.stats import EngineStats

from .engine import Engine
from .lifecycle import EngineLoop

log = logging.getLogger(__name__)

DeltaSink = Callable[[TokenDelta], None]


class EngineClient(Protocol):
    """Submit, abort, stop; thread-safe."""

    def submit(self, request: Request, sink: DeltaSink) -> None:
        """Raises QueueFull or EngineDead before anything is queued."""
        ...

    def abort(self, request_id: str) -> None: ...

    def stop(self, request_id: str) -> None: ...

    @property
    def alive(self) -> bool: ...

    @property
    def ready(self) -> bool:
        """New requests are taken: it is alive, and no part of it that they need is being started again."""
        ...

    @property
    def gone(self) -> str | None:
        """Why it is not alive any more though nobody closed it: which engine, and how it ended."""
        ...

    @property
    def stats(self) -> EngineStats:
        """The latest snapshot; empty when the engine is gone."""
        ...

    def profile(self, seconds: float) -> dict[str, dict[str, int]]:
        """Where the engine's processes spend this time, by process: how often each stack was seen.

        Waits for it. Nothing for an engine in the caller's process. Raises EngineDead.
        """
        ...

    def close(self) -> None: ...


class Sinks:
    """Which request's deltas go where. Thread-safe; a request leaves with its last delta."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sinks: dict[str, DeltaSink] = {}

    def add(self, request_id: str, sink: DeltaSink) -> None:
        with self._lock:
            self._sinks[request_id] = sink

    def drop(self, request_id: str) -> bool:
        """Whether it was there, and so has not had its last delta."""
        with self._lock:
            return self._sinks.pop(request_id, None) is not None

    def unheard(self, deltas: list[TokenDelta]) -> set[str]:
        """Requests that go on though nobody here waits for them."""
        with self._lock:
            return {d.request_id for d in deltas if d.finish_reason is None and d.request_id not in self._sinks}

    def deliver(self, deltas: list[TokenDelta]) -> None:
        for delta in deltas:
            with self._lock:
                sink = self._sinks.get(delta.request_id)
                if delta.finish_reason is not None:
                    self._sinks.pop(delta.request_id, None)
            if sink is None:
                continue
            try:
                sink(delta)
            except Exception:  # its owner is gone (a closed event loop, say): nobody else may suffer
                self.drop(delta.request_id)
                log.warning("nobody takes the news of request %r any more", delta.request_id)

    def fail_all(self, message: str) -> None:
        """Every request still open ends with an error: nobody is left waiting."""
        with self._lock:
            names = list(self._sinks)
        self.deliver([TokenDelta(request_id=name, finish_reason="error", error=message) for name in names])


class ThreadClient:
    """An engine on a thread of this process."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._sinks = Sinks()
        self._loop = EngineLoop(engine, self._sinks.deliver)

    def submit(self, request: Request, sink: DeltaSink) -> None:
        if not self._loop.alive:
            raise EngineDead("the engine has stopped")
        self._sinks.add(request.request_id, sink)
        try:
            self._engine.submit(request)
        except Exception:
            self._sinks.drop(request.request_id)
            raise

    def abort(self, request_id: str) -> None:
        self._engine.abort(request_id)

    def stop(self, request_id: str) -> None:
        self._engine.stop(request_id)

    @property
    def alive(self) -> bool:
        return self._loop.alive

    @property
    def ready(self) -> bool:
        return self.alive

    @property
    def gone(self) -> str | None:
        return self._loop.why

    @property
    def stats(self) -> EngineStats:
        return self._engine.stats

    def profile(self, seconds: float) -> dict[str, dict[str, int]]:  # noqa: ARG002  # the protocol's signature
        return {}

    def close(self) -> None:
        self._loop.close()
        self._sinks.fail_all("the engine was closed")

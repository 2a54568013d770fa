"""A prompt engine and a completion engine on two threads of this process, as one EngineClient.

A request goes to the prompt engine; its deltas come from one engine, then from the other. Exactly one of them, or the
port between them, has it at any moment, so an end asked for by its caller is told to all three. Both engines live and
die together.
"""

from __future__ import annotations

import threading

from headrace.contract.errors import EngineDead
from headrace.contract.request import Request
from headrace.contract.result import TokenDelta
from headrace.contract.stats import EngineStats, total_stats

from .client import DeltaSink, Sinks
from .engine import Engine
from .lifecycle import EngineLoop
from .local_hand_off import LocalHandOff


class PairClient:
    """``port`` must be the one that both engines were built with. Thread-safe."""

    def __init__(self, prompt: Engine, completion: Engine, port: LocalHandOff) -> None:
        self._engines = (prompt, completion)
        self._port = port
        self._lock = threading.Lock()
        self._open: set[str] = set()
        self._sinks = Sinks()
        port.wake = completion.intake.poke
        self._loops = [EngineLoop(engine, self._deliver) for engine in self._engines]

    def submit(self, request: Request, sink: DeltaSink) -> None:
        """Raises InvalidRequest or EngineDead before anything is queued."""
        if not self.alive:
            raise EngineDead("one of the two engines has stopped")
        name = request.request_id
        with self._lock:
            self._open.add(name)
        self._sinks.add(name, sink)
        try:
            self._engines[0].submit(request)
        except Exception:
            self._sinks.drop(name)
            self._forget(name)
            raise

    def _deliver(self, deltas: list[TokenDelta]) -> None:
        self._sinks.deliver(deltas)
        for delta in deltas:
            if delta.finish_reason is not None:
                self._forget(delta.request_id)

    def _forget(self, name: str) -> None:
        with self._lock:
            self._open.discard(name)
            self._port.forget(name)

    def abort(self, request_id: str) -> None:
        self._end(request_id, "abort")

    def stop(self, request_id: str) -> None:
        self._end(request_id, "stop")

    def _end(self, name: str, reason: str) -> None:
        with self._lock:
            if name not in self._open:
                return
            self._port.end(name, reason)  # first: whoever takes it from now on will know
        for engine in self._engines:
            engine.intake.end(name, reason)

    @property
    def alive(self) -> bool:
        return all(loop.alive for loop in self._loops)

    @property
    def ready(self) -> bool:
        return self.alive

    @property
    def gone(self) -> str | None:
        ends = zip(("prompt", "completion"), self._loops)
        return next((f"the {role} engine: {loop.why}" for role, loop in ends if loop.why is not None), None)

    @property
    def stats(self) -> EngineStats:
        """The sum over both; empty when they are gone."""
        return total_stats(self.rank_stats)

    @property
    def rank_stats(self) -> list[EngineStats]:
        """The prompt engine's and the completion engine's."""
        return [engine.stats for engine in self._engines] if self.alive else []

    def profile(self, seconds: float) -> dict[str, dict[str, int]]:  # noqa: ARG002  # the protocol's signature
        return {}

    def close(self) -> None:
        """The prompt engine first: then nothing can enter the port that nobody takes."""
        for loop in self._loops:
            loop.close()
        self._sinks.fail_all("the engine was closed")

"""EngineHost: the engine as the routes see it, and whoever brings it back when it dies. Admission is decided here."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.contract.errors import HeadraceError
from headrace.obs.metrics import Metrics

from ..async_llm import AsyncLLM
from ..prompts import Prepared
from .errors import HttpError, too_busy, unavailable
from .generation import Generation

WATCH_PERIOD_S = 0.2
MAX_BACKOFF_S = 30.0

log = logging.getLogger("headrace.serve")


@dataclass(frozen=True, slots=True)
class HostLimits:
    """``max_open``: sequences accepted and not yet answered. ``keep_alive_s``: silence before a comment is sent.
    ``write_timeout_s``: a client that takes nothing for this long is gone. ``max_body_bytes``: of a request."""

    max_open: int = 1024
    keep_alive_s: float = 10.0
    write_timeout_s: float = 60.0
    max_body_bytes: int = 16 << 20


class EngineHost:
    """Owns the engine. ``names``: what clients may call the model; the first is what answers say."""

    def __init__(self, start: Callable[[], AsyncLLM], names: Sequence[str], limits: HostLimits | None = None) -> None:
        self._start = start
        self.llm = start()
        self.names = tuple(names)
        self.limits = limits or HostLimits()
        self.metrics = Metrics()
        self.created = int(time.time())
        self.draining = False
        self.num_open = 0
        self._watcher: asyncio.Task[None] | None = None

    @property
    def ready(self) -> bool:
        """New work would be taken."""
        return self.llm.client.alive and not self.draining

    def check_model(self, name: str | None) -> None:
        """None means whatever is served."""
        if name is not None and name not in self.names:
            words = f"the model {name!r} does not exist; served here: {', '.join(self.names)}"
            raise HttpError(404, words, field="model", code="model_not_found")

    def check_room(self, count: int = 1) -> None:
        """Refuses work before any is done: 503 while draining or without engine, 429 when the queue is full."""
        if self.draining:
            raise unavailable("the server is shutting down")
        if not self.llm.client.alive:
            raise unavailable("the engine is starting again")
        if count > self.limits.max_open:
            words = f"asks for {count} sequences at once; at most {self.limits.max_open} can be open"
            raise HttpError(400, words, field="n")
        if self.num_open + count > self.limits.max_open:
            raise too_busy(self.limits.max_open)

    def generate(self, prepared: Sequence[Prepared]) -> HostedGeneration:
        """Submits all or nothing."""
        self.check_room(sum(len(one.requests) for one in prepared))
        return HostedGeneration(self, prepared)

    # -- life ---------------------------------------------------------------------------------------------------

    def watch(self) -> None:
        """Starts looking after the engine, on the running loop."""
        self._watcher = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        backoff_s = 0.0
        while True:
            await asyncio.sleep(WATCH_PERIOD_S)
            if self.llm.client.alive or self.draining:
                backoff_s = 0.0
                continue
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s + 1.0, MAX_BACKOFF_S)
            await self._restart()

    async def _restart(self) -> None:
        log.error("the engine died; starting it again")
        dead = self.llm
        try:
            await asyncio.to_thread(dead.close)
            self.llm = await asyncio.to_thread(self._start)
        except HeadraceError as error:
            log.error("the engine did not come back: %s", error)
            return
        self.metrics.add("engine_restarts")
        log.warning("the engine is back")

    async def drain(self, deadline_s: float) -> bool:
        """Takes nothing new; waits for what is open. False when the deadline came first."""
        self.draining = True
        end = time.monotonic() + deadline_s
        while self.num_open and time.monotonic() < end:
            await asyncio.sleep(0.02)
        return self.num_open == 0

    def close(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
        self.llm.close()

    def refresh_metrics(self) -> Metrics:
        """The metrics with the engine's latest numbers in them."""
        stats, put = self.llm.client.stats, self.metrics.put
        put("requests_running", stats.running)
        put("requests_waiting", stats.waiting)
        put("kv_cache_blocks", stats.num_blocks)
        put("kv_cache_used_blocks", stats.used_blocks)
        put("kv_cache_usage_ratio", stats.used_blocks / stats.num_blocks if stats.num_blocks else 0.0)
        put("token_budget_left", stats.token_budget_left)
        put("prefix_cache_queries", stats.prefix_queries)
        put("prefix_cache_hits", stats.prefix_hits)
        put("preemptions", stats.preemptions)
        put("steps", stats.steps)
        put("failed_steps", stats.failed_steps)
        put("step_tokens", stats.decode_tokens, "decode")
        put("step_tokens", stats.scheduled_tokens - stats.decode_tokens, "prefill")
        put("sampled_tokens", stats.sampled_tokens)
        for event, count in stats.kv_store.items():
            put("kv_store_events", count, event)
        for mode, count in stats.graph_steps.items():
            put("graph_steps", count, mode)
        put("engine_up", float(self.llm.client.alive))
        put("draining", float(self.draining))
        put("open_sequences", self.num_open)
        return self.metrics


class HostedGeneration(Generation):
    """A generation that counts as open from its start to its close."""

    def __init__(self, host: EngineHost, prepared: Sequence[Prepared]) -> None:
        super().__init__(host.llm, prepared, host.metrics)
        self._host = host
        self._count = sum(len(one.requests) for one in prepared)
        host.num_open += self._count
        self.start()

    def close(self) -> None:
        super().close()
        self._host.num_open -= self._count
        self._count = 0

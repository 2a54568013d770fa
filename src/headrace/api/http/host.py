"""EngineHost: the engine as the routes see it, and whoever brings it back when it dies. Admission is decided here."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from headrace.contract.errors import ConfigError, EngineDead, HeadraceError
from headrace.obs.metrics import Metrics

from ..async_llm import AsyncLLM
from ..prompts import Prepared
from ..protocol.codec import Codec, make_codec
from ..tenants.tenancy import Tenancy, Visit
from ..text.answer_forms import Mark, ParserChoice
from .arrivals import Arrival, Finished, Observer
from .body import Intake
from .engine_metrics import put_engine, put_ranks
from .errors import HttpError, as_http, stopping, too_busy, unavailable
from .generation import Generation
from .tenant_prompts import ranked, salted

WATCH_PERIOD_S = 0.2
END_S = 1.0  # for clients to take the last event of a stream that is ended
MAX_BACKOFF_S = 30.0

log = logging.getLogger("headrace.serve")


@dataclass(frozen=True, slots=True)
class HostLimits:
    """``max_open``: sequences accepted and not yet answered. ``keep_alive_s``: silence before a comment is sent.
    ``write_timeout_s``: a client that takes or sends nothing for this long is gone. ``max_body_bytes``: of a request.
    ``peak_flops``: what the machine can do a second, for whoever divides by it; 0: unknown."""

    max_open: int = 1024
    keep_alive_s: float = 10.0
    write_timeout_s: float = 60.0
    max_body_bytes: int = 16 << 20
    peak_flops: float = 0.0


class EngineHost:
    """Owns the engine. ``names``: what clients may call the model; the first is what answers say. ``give_up``: what
    ``start`` heeds; set when nobody waits for an engine any more."""

    def __init__(
        self,
        start: Callable[[], AsyncLLM],
        names: Sequence[str],
        limits: HostLimits | None = None,
        parsers: ParserChoice | None = None,
        tenancy: Tenancy | None = None,
        codec: str = "template",
        give_up: threading.Event | None = None,
    ) -> None:
        self.tenancy = tenancy
        self._start = start
        self._give_up = give_up or threading.Event()
        self._parsers, self._codec = parsers, codec
        self.llm = start()
        if codec != "template":
            self._check_codec()
        self.names = tuple(names)
        self.encoder: str | None = None  # the model that makes embeddings here, if there is one
        self.limits = limits or HostLimits()
        self.intake = Intake(self.limits.max_body_bytes, self.limits.write_timeout_s)
        self.metrics = Metrics()
        self.observers: list[Observer] = []  # told of every request that is over
        self.created = int(time.time())
        self.draining = False
        self.when_draining: list[Callable[[], None]] = []
        self.num_open = 0
        self._generations: set[HostedGeneration] = set()
        self._hurried = False
        self._watcher: asyncio.Task[None] | None = None

    @cached_property
    def codec(self) -> Codec:
        """How the model writes conversations. Raises ConfigError."""
        if self.llm.tokenizer is None:
            raise ConfigError("codec", "this model has no tokenizer")
        return make_codec(self._codec, self.llm.tokenizer, self._parsers)

    def _check_codec(self) -> None:
        """Refused at the start, not at the first conversation."""
        try:
            _ = self.codec
        except ConfigError:
            self.llm.close()
            raise

    @property
    def ready(self) -> bool:
        """New work would be taken."""
        return self.llm.client.ready and not self.draining

    def check_model(self, name: str | None) -> None:
        """None means whatever is served."""
        if name is not None and name not in self.names:
            fault = "only makes embeddings" if name == self.encoder else "does not exist"
            words = f"the model {name!r} {fault}; served here: {', '.join(self.names)}"
            raise HttpError(404, words, field="model", code="model_not_found")

    def check_open(self) -> None:
        """Refuses new work of any kind while draining."""
        if self.draining:
            raise stopping()

    @property
    def num_requests(self) -> int:
        """Taken on and not yet answered."""
        return len(self._generations)

    def check_room(self, count: int = 1) -> None:
        """Refuses work before any is done: 503 while draining or without engine, 429 when the queue is full."""
        self.check_open()
        if not self.llm.client.alive:
            raise unavailable("the engine is starting again")
        if count > self.limits.max_open:
            words = f"asks for {count} sequences at once; at most {self.limits.max_open} can be open"
            raise HttpError(400, words, field="n")
        if self.num_open + count > self.limits.max_open:
            raise too_busy(self.limits.max_open)

    def generate(
        self, prepared: Sequence[Prepared], arrival: Arrival, marks: Mapping[int, Mark] | None = None
    ) -> HostedGeneration:
        """Takes the work on; the engine gets it when its turn comes. ``marks``: tokens that bound parts of answers."""
        count = sum(len(one.requests) for one in prepared)
        self.check_room(count)
        visit, tenant = None, arrival.tenant
        if self.tenancy is not None and tenant is not None:
            prompt_tokens = sum(len(one.token_ids) * len(one.requests) for one in prepared)
            self.tenancy.admit_prompt(tenant, prompt_tokens)
            visit = Visit(self.tenancy, tenant, count, prompt_tokens)
            prepared = [salted(one, tenant) for one in prepared]
        return HostedGeneration(self, prepared, arrival, marks, visit)

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
        dead = self.llm
        log.error("the engine died (%s); starting it again", dead.client.gone or "nobody knows why")
        try:
            await asyncio.to_thread(dead.close)
            self.llm = await asyncio.to_thread(self._start_again)
        except HeadraceError as error:
            log.error("the engine did not come back: %s", error)
            return
        self.metrics.add("engine_restarts")
        log.warning("the engine is back")

    def _start_again(self) -> AsyncLLM:
        """On a thread, which nobody can stop: it stops by itself once there is no need for an engine."""
        llm = self._start()
        if self._give_up.is_set():
            llm.close()
            raise EngineDead("the engine is not needed any more")
        return llm

    async def drain(self, deadline_s: float) -> bool:
        """Takes nothing new; waits for what is open. False when the deadline, or ``hurry``, came first."""
        self.draining = True
        self._give_up.set()  # an engine that is being started again would come for nobody
        for told in self.when_draining:
            told()
        end = time.monotonic() + deadline_s
        while self.num_open and time.monotonic() < end and not self._hurried:
            await asyncio.sleep(0.02)
        return self.num_open == 0

    def hurry(self) -> None:
        """Ends the wait of ``drain``."""
        self._hurried = True

    async def end_open(self) -> None:
        """Ends every request with an error that says why. Clients that do not take it are not waited for long."""
        for generation in list(self._generations):
            generation.fail(stopping())
        end = time.monotonic() + END_S
        while self.num_open and time.monotonic() < end:
            await asyncio.sleep(0.02)

    def close(self) -> None:
        self._give_up.set()
        if self._watcher is not None:
            self._watcher.cancel()
        self.intake.close()
        self.llm.close()
        if self.tenancy is not None:
            self.tenancy.usage.close()

    def refresh_metrics(self) -> Metrics:
        """The metrics with the engine's latest numbers in them."""
        client, put = self.llm.client, self.metrics.put
        put_engine(self.metrics, client.stats, self.llm.step_cost)
        put_ranks(self.metrics, getattr(client, "rank_stats", [client.stats]))
        put("peak_flops", self.limits.peak_flops)
        put("engine_up", float(client.alive))
        put("draining", float(self.draining))
        put("open_sequences", self.num_open)
        if self.tenancy is not None:
            for tenant in self.tenancy.registry.tenants:
                put("tenant_requests_waiting", self.tenancy.queue.waiting(tenant.name), tenant.name)
                put("tenant_sequences_running", self.tenancy.queue.running(tenant.name), tenant.name)
        return self.metrics


class HostedGeneration(Generation):
    """A generation that counts as open from its making to its close. A tenant's waits for its turn."""

    def __init__(
        self,
        host: EngineHost,
        prepared: Sequence[Prepared],
        arrival: Arrival,
        marks: Mapping[int, Mark] | None = None,
        visit: Visit | None = None,
    ) -> None:
        super().__init__(host.llm, prepared, host.metrics, marks)
        self._host = host
        self._arrival = arrival
        self._first_ns: int | None = None
        self._over = False
        self.told: Finished | None = None  # once it is over
        self._visit = visit
        self._count = sum(len(one.requests) for one in prepared)
        host.num_open += self._count
        host._generations.add(self)
        if visit is None:
            self.start()

    async def turn(self) -> None:
        """Returns once the work is with the engine. Raises OverLimit, EngineDead."""
        if self._visit is not None:
            await self._visit.turn()
            self._prepared = [ranked(one, self._visit.rank) for one in self._prepared]
            self.start()

    def fail(self, error: Exception) -> None:
        super().fail(error)
        if self._visit is not None:
            self._visit.fail(error)

    def tokens_came(self, num_tokens: int) -> None:
        self._first_ns = self._first_ns or time.time_ns()
        if self._visit is not None:
            self._visit.generated(num_tokens)

    def close(self) -> None:
        if self._over:
            return
        self._over, cut = True, not self.finished
        super().close()
        self._host.num_open -= self._count
        self._host._generations.discard(self)
        if self._visit is not None:
            self._visit.end(self.usage.cached_tokens)
        self.told = self._told(cut)
        for observer in self._host.observers:
            observer(self.told, self._arrival)

    def _told(self, cut: bool) -> Finished:
        usage, arrival, failure = self.usage, self._arrival, self.failure
        error = "abort" if cut else None
        reasons = [choice.finish_reason or "abort" for output in self.outputs for choice in output.outputs]
        return Finished(
            arrival.request_id,
            arrival.operation,
            self._host.names[0],
            None if arrival.tenant is None else arrival.tenant.name,
            arrival.at_ns,
            self._first_ns,
            time.time_ns(),
            usage.prompt_tokens,
            usage.cached_tokens,
            usage.completion_tokens,
            reasons,
            error if failure is None else as_http(failure).word,
        )

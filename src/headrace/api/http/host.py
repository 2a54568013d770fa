"""EngineHost: the engine as the routes see it, and whoever brings it back when it dies. Admission is decided here."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from headrace.contract.errors import ConfigError, EngineDead, HeadraceError
from headrace.obs.metrics import Metrics

from ..async_llm import AsyncLLM
from ..prompts import Prepared
from ..protocol.codec import Codec, make_codec
from ..tenants.registry import Tenant
from ..tenants.tenancy import Tenancy
from ..tenants.visit import Visit
from ..text.answer_forms import Mark, ParserChoice
from .arrivals import Arrival, Observer
from .body import Intake
from .engine_metrics import put_engine, put_ranks
from .errors import HttpError, stopping, too_busy, unavailable
from .hosted_generation import HostedGeneration
from .tenant_metrics import put_tenants
from .tenant_prompts import salted, turn_costs, turn_waits

WATCH_PERIOD_S = 0.2
END_S = 1.0  # for clients to take the last event of a stream that is ended
MAX_BACKOFF_S = 30.0

log = logging.getLogger("headrace.serve")


@dataclass(frozen=True, slots=True)
class HostLimits:
    """``max_open``: sequences accepted and not yet answered; of several tenants, one may have half of them open.
    ``keep_alive_s``: silence before a comment is sent.
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
        bounds = self.limits
        self.intake = Intake(bounds.max_body_bytes, bounds.write_timeout_s, bounds.max_open)
        self.metrics = Metrics()
        self.observers: list[Observer] = []  # told of every request that is over
        self.created = int(time.time())
        self.draining = False
        self.when_draining: list[Callable[[], None]] = []
        self.when_ending: list[Callable[[], None]] = []
        self.others: list[Callable[[], int]] = []  # open requests that need no engine
        self.num_open = 0
        self.open_by = Counter[str]()  # the same, by tenant
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
    def chats(self) -> bool:
        """Conversations can be written for it. A base model only continues text."""
        tokenizer = self.llm.tokenizer
        return tokenizer is not None and (self._codec != "template" or bool(tokenizer.chat_template))

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
        return len(self._generations) + sum(count() for count in self.others)

    def check_room(self, count: int = 1, tenant: Tenant | None = None) -> None:
        """Refuses work before any is done: 503 while draining or without engine, 429 when the queue is full, or the
        tenant's half of it."""
        self.check_open()
        if not self.llm.client.ready:
            raise unavailable("the engine is starting again")
        self.check_count(count, tenant)
        if self.num_open + count > self.limits.max_open:
            raise too_busy(self.limits.max_open)
        if tenant is not None and self.open_by[tenant.name] + count > self._most_open(tenant):
            raise too_busy(self._most_open(tenant), f" of {tenant.name}")

    def check_count(self, count: int, tenant: Tenant | None = None) -> None:
        """Refuses what could never be let in, with 400."""
        if count > self._most_open(tenant):
            words = f"asks for {count} sequences at once; at most {self._most_open(tenant)} can be open"
            raise HttpError(400, words, field="n")

    def _most_open(self, tenant: Tenant | None) -> int:
        """What one may have open: half of it where others want to come in, too."""
        alone = tenant is None or self.tenancy is None or len(self.tenancy.registry.tenants) < 2
        return self.limits.max_open if alone else max(1, self.limits.max_open // 2)

    def generate(
        self, prepared: Sequence[Prepared], arrival: Arrival, marks: Mapping[int, Mark] | None = None
    ) -> HostedGeneration:
        """Takes the work on; the engine gets it when its turn comes. ``marks``: tokens that bound parts of answers."""
        visit, tenant = None, arrival.tenant
        self.check_room(sum(len(one.requests) for one in prepared), tenant)
        if self.tenancy is not None and tenant is not None:
            costs = turn_costs(prepared)
            self.tenancy.admit_prompt(tenant, sum(costs))
            visit = Visit(self.tenancy, tenant, costs, turn_waits(prepared))
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
        except Exception:  # a full disk, no process to be had: it may pass, and nobody else would try again
            log.exception("the engine did not come back")
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
        while self.num_requests and time.monotonic() < end and not self._hurried:
            await asyncio.sleep(0.02)
        return self.num_requests == 0

    def hurry(self) -> None:
        """Ends the wait of ``drain``."""
        self._hurried = True

    async def end_open(self) -> None:
        """Ends every request with an error that says why. Clients that do not take it are not waited for long."""
        for generation in list(self._generations):
            generation.fail(stopping())
        for told in self.when_ending:
            told()
        end = time.monotonic() + END_S
        while self.num_requests and time.monotonic() < end:
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
        queued = 0 if self.tenancy is None else put_tenants(self.metrics, self.tenancy)
        put("requests_queued", client.stats.waiting + queued)
        return self.metrics

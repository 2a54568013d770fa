"""Tenancy: keys, rates, turns and usage of all tenants in one place. Used on one thread, the server's loop.

``admit_request`` and ``admit_prompt`` refuse before any work; a Visit (``visit.py``) goes with the request to its end.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.contract.errors import ConfigError, HeadraceError

from .buckets import Bucket
from .fair_queue import FairQueue
from .registry import Registry, Tenant
from .usage import UsageBook


@dataclass(frozen=True, slots=True)
class TenancyLimits:
    """``slots``: sequences in the engine at once. ``window``: prompt tokens in it without a first token.
    ``max_waiting``: requests of one tenant in the queue. ``wait_s``: the longest wait of one with nothing under way."""

    slots: int = 64
    window: int = 1024
    max_waiting: int = 256
    wait_s: float = 60.0


@dataclass(slots=True)
class Served:
    """What one tenant got since the server's start. ``turns``: sequences that went to the engine; ``wait_s``: what all
    its sequences waited for their turns, those that gave up included."""

    turns: int = 0
    wait_s: float = 0.0
    prompt_tokens: int = 0
    generation_tokens: int = 0


class OverLimit(HeadraceError):
    """A tenant asks for more than it may. ``retry_after_s``: when it is worth asking again."""

    def __init__(self, message: str, retry_after_s: int, code: str = "rate_limit_exceeded") -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.code = code


class Tenancy:
    def __init__(
        self,
        registry: Registry,
        usage: UsageBook,
        limits: TenancyLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not registry.tenants:
            raise ConfigError("tenants", "there are none, so nobody could ask anything: `headrace tenants add NAME`")
        self.registry = registry
        self.usage = usage
        self.limits = limits or TenancyLimits()
        self._clock = clock
        now, tenants = clock(), registry.tenants
        self._requests = {t.name: Bucket(t.requests_per_min, now) for t in tenants if t.requests_per_min}
        self._tokens = {t.name: Bucket(t.tokens_per_min, now) for t in tenants if t.tokens_per_min}
        self.waiting = Counter[str]()  # requests of which no sequence has had its turn, by tenant
        self.served = {tenant.name: Served() for tenant in tenants}
        self.queue = FairQueue({t.name: t.weight for t in tenants}, self.limits.slots, self.limits.window)

    def admit_request(self, tenant: Tenant) -> None:
        """Before anything is read. Raises OverLimit."""
        self._check_waiting(tenant)
        self._take(self._requests, tenant, 1, "requests")

    def _check_waiting(self, tenant: Tenant) -> None:
        if self.waiting[tenant.name] >= self.limits.max_waiting:
            raise OverLimit(f"{self.limits.max_waiting} requests of {tenant.name} wait already", 1, "queue_full")

    def admit_prompt(self, tenant: Tenant, tokens: int) -> None:
        """When the prompt's length is known. Tokens generated later are taken as they come, into debt if need be.
        Others of the tenant may have begun to wait since the request was admitted."""
        self._check_waiting(tenant)
        self._take(self._tokens, tenant, tokens, "tokens")

    def _take(self, buckets: Mapping[str, Bucket], tenant: Tenant, amount: int, what: str) -> None:
        bucket = buckets.get(tenant.name)
        if bucket is None:
            return
        wait_s = bucket.wait_s(amount, self._clock())
        if wait_s:
            raise OverLimit(f"{tenant.name} may use {bucket.per_minute} {what} a minute; wait {wait_s} s", wait_s)
        bucket.take(amount, self._clock())

    def give_back(self, tenant: Tenant, tokens: int) -> None:
        """Of a prompt that was admitted and never computed."""
        self.take_generated(tenant, -tokens)

    def take_generated(self, tenant: Tenant, tokens: int) -> None:
        if (bucket := self._tokens.get(tenant.name)) is not None:
            bucket.take(tokens, self._clock())

    def view(self, totals: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Every tenant with limits, usage (``totals`` of the book) and work in hand. No keys and no hashes."""
        now = self._clock()
        return [
            {
                "name": tenant.name,
                "admin": tenant.admin,
                "weight": tenant.weight,
                "requests_per_min": tenant.requests_per_min,
                "tokens_per_min": tenant.tokens_per_min,
                "requests_left": self._left(self._requests, tenant, now),
                "tokens_left": self._left(self._tokens, tenant, now),
                "waiting": self.waiting[tenant.name],
                "running": self.queue.running(tenant.name),
                "usage": totals.get(tenant.name, {}),
            }
            for tenant in self.registry.tenants
        ]

    def now_s(self) -> float:
        """Of the clock that waits are told by."""
        return self._clock()

    def _left(self, buckets: Mapping[str, Bucket], tenant: Tenant, now: float) -> int | None:
        bucket = buckets.get(tenant.name)
        return None if bucket is None else int(bucket.level(now))

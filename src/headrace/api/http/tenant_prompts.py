"""What becomes of a tenant's prompt before the engine sees it: its place in the queue, and whose cache it may find."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import msgspec

from headrace.contract.request import Request

from ..prompts import Prepared
from ..tenants.registry import Tenant

MAX_PRIORITY = 2**53  # the core counts in 64 bits


def ranked(request: Request, rank: int) -> Request:
    """The same sequence with the priority that its tenant's turn gives it; what the client asked for does not count."""
    return msgspec.structs.replace(request, priority=min(rank, MAX_PRIORITY))


def turn_costs(prepared: Sequence[Prepared]) -> list[int]:
    """Prompt tokens of each sequence in order: a prompt's choices compute it once."""
    return [0 if k else len(one.token_ids) for one in prepared for k in range(len(one.requests))]


def salted(prepared: Prepared, tenant: Tenant) -> Prepared:
    """The same prompt, findable in the cache by this tenant only, unless it shares. Timing tells nobody what others
    asked."""
    if tenant.share_cache:
        return prepared
    replace = msgspec.structs.replace
    salts = [f"tenant\x1f{tenant.name}\x1f{request.cache_salt}" for request in prepared.requests]
    requests = [replace(request, cache_salt=salt) for request, salt in zip(prepared.requests, salts)]
    return dataclasses.replace(prepared, requests=requests)

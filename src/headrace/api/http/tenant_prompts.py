"""What becomes of a tenant's prompt before the engine sees it: its place in the queue, and whose cache it may find."""

from __future__ import annotations

import dataclasses

import msgspec

from ..prompts import Prepared
from ..tenants.registry import Tenant

MAX_PRIORITY = 2**53  # the core counts in 64 bits


def ranked(prepared: Prepared, rank: int) -> Prepared:
    """The same prompt with the priority that its tenant's turn gives it; what the client asked for does not count."""
    priority = min(rank, MAX_PRIORITY)
    requests = [msgspec.structs.replace(request, priority=priority) for request in prepared.requests]
    return dataclasses.replace(prepared, requests=requests)


def salted(prepared: Prepared, tenant: Tenant) -> Prepared:
    """The same prompt, findable in the cache by this tenant only, unless it shares. Timing tells nobody what others
    asked."""
    if tenant.share_cache:
        return prepared
    replace = msgspec.structs.replace
    salts = [f"tenant\x1f{tenant.name}\x1f{request.cache_salt}" for request in prepared.requests]
    requests = [replace(request, cache_salt=salt) for request, salt in zip(prepared.requests, salts)]
    return dataclasses.replace(prepared, requests=requests)

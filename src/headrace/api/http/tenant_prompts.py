"""What becomes of a tenant's prompt before the engine sees it: its place in the queue, and whose cache it may find."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import msgspec

from headrace.contract.request import Request
from headrace.contract.salts import joined

from ..prompts import Prepared
from ..tenants.registry import Tenant

MAX_PRIORITY = 2**53  # the core counts in 64 bits


def ranked(request: Request, rank: int) -> Request:
    """The same sequence with the priority that its tenant's turn gives it; what the client asked for does not count."""
    return msgspec.structs.replace(request, priority=min(rank, MAX_PRIORITY))


def turn_costs(prepared: Sequence[Prepared]) -> list[int]:
    """Prompt tokens of each sequence in order: a prompt's choices compute it once."""
    return [0 if k else len(one.token_ids) for one in prepared for k in range(len(one.requests))]


def turn_waits(prepared: Sequence[Prepared]) -> list[bool]:
    """Whether the engine has something to make before it computes the prompt: a constraint, rows of pictures."""
    return [
        one.sampling.structured_outputs is not None or bool(request.pictures)
        for one in prepared
        for request in one.requests
    ]


def salted(prepared: Prepared, tenant: Tenant) -> Prepared:
    """The same prompt as this tenant's own, findable in the cache by it only, or by those who share. Timing tells
    nobody what others asked."""
    whose = ("shared",) if tenant.share_cache else ("tenant", tenant.name)
    requests = [
        msgspec.structs.replace(request, cache_salt=joined(*whose, request.cache_salt), tenant=tenant.name)
        for request in prepared.requests
    ]
    return dataclasses.replace(prepared, requests=requests)

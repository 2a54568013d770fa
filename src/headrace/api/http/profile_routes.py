"""``POST /debug/profile``: where the server and its engines spend their time, as collapsed stacks for a flame graph.

Off by default. For admins where there are tenants, else for callers on this machine only. Never shows data.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from ipaddress import ip_address

from fastapi import APIRouter, Request, Response

from headrace.contract.errors import InvalidRequest
from headrace.obs.stacks import MAX_S, sample

from .errors import HttpError
from .host import EngineHost
from .tenants import require_admin


def profile_routes(host: EngineHost) -> APIRouter:
    router = APIRouter()
    busy = asyncio.Lock()

    @router.post("/debug/profile")
    async def profile(request: Request) -> Response:
        if host.tenancy is not None:
            require_admin(request)
        elif not _is_local(request):
            raise HttpError(403, "profiles are for callers on this machine, or for admins of tenants", code="not_local")
        seconds = _seconds(request.query_params.get("seconds", "5"))
        if busy.locked():
            raise InvalidRequest("seconds", "a profile is being taken already")
        async with busy:
            stacks = await profile_all(host, seconds)
        lines = [f"{stack} {count}" for stack, count in stacks.most_common()]
        return Response("\n".join(lines) + "\n", media_type="text/plain; charset=utf-8")

    return router


async def profile_all(host: EngineHost, seconds: float) -> Counter[str]:
    """All processes during the same time; each stack begins with its process. Raises EngineDead."""
    own, others = await asyncio.gather(
        asyncio.to_thread(sample, seconds), asyncio.to_thread(host.llm.client.profile, seconds)
    )
    stacks: Counter[str] = Counter()
    for process, seen in {"server": own, **others}.items():
        stacks.update({f"{process};{stack}": count for stack, count in seen.items()})
    return stacks


def _is_local(request: Request) -> bool:
    try:
        address = ip_address(request.client.host if request.client is not None else "")
    except ValueError:
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def _seconds(text: str) -> float:
    """Read here: the framework would refuse it in words of its own."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= MAX_S:
        raise InvalidRequest("seconds", f"must be a number between 0 and {MAX_S:g}")
    return seconds

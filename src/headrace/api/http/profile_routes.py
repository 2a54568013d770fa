"""``POST /debug/profile``: where this process spends its time, as collapsed stacks for a flame graph. Off by default.

It samples the server's own process; the engine has its flight recorder. Stacks name code, never data.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections import Counter
from types import FrameType

from fastapi import APIRouter, Request, Response

from headrace.contract.errors import InvalidRequest

PERIOD_S = 0.005
MAX_S = 60.0


def profile_routes() -> APIRouter:
    router = APIRouter()
    busy = asyncio.Lock()

    @router.post("/debug/profile")
    async def profile(request: Request) -> Response:
        seconds = _seconds(request.query_params.get("seconds", "5"))
        if busy.locked():
            raise InvalidRequest("seconds", "a profile is being taken already")
        async with busy:
            stacks = await asyncio.to_thread(sample, seconds)
        lines = [f"{stack} {count}" for stack, count in stacks.most_common()]
        return Response("\n".join(lines) + "\n", media_type="text/plain; charset=utf-8")

    return router


def _seconds(text: str) -> float:
    """Read here: the framework would refuse it in words of its own."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= MAX_S:
        raise InvalidRequest("seconds", f"must be a number between 0 and {MAX_S:g}")
    return seconds


def sample(seconds: float) -> Counter[str]:
    """How often each stack was seen, root first, over all threads but this one."""
    stacks: Counter[str] = Counter()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    own, end = threading.get_ident(), time.monotonic() + seconds
    while time.monotonic() < end:
        for ident, frame in sys._current_frames().items():
            if ident != own:
                stacks[f"{names.get(ident, 'thread')};{_stack(frame)}"] += 1
        time.sleep(PERIOD_S)
    return stacks


def _stack(frame: FrameType | None) -> str:
    calls = []
    while frame is not None:
        code = frame.f_code
        calls.append(f"{code.co_filename.rsplit('/', 1)[-1]}:{code.co_qualname}")
        frame = frame.f_back
    return ";".join(reversed(calls))

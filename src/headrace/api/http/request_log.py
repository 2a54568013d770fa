"""One line of JSON for every request to a route of the API, answered, refused or cut: whose it was, what came of it.

Never holds a prompt, an answer, a key, or a path that is no route: those are a client's words.
"""

from __future__ import annotations

import json
import logging
import time
from dataclasses import asdict
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .arrivals import Arrival, Finished, arrival_of
from .paths import UNKNOWN, Paths
from .tenants import GUARDED

TIMES = ("started_ns", "first_ns", "ended_ns")

log = logging.getLogger("headrace.requests")


class RequestLog:
    """Plain ASGI, around all that may refuse. ``paths``: for requests that are refused before they find their route.

    Reads ``generation`` and ``error`` of the request's state: the one that was made of it, and the refusal's word.
    """

    def __init__(self, app: ASGIApp, paths: Paths) -> None:
        self._app = app
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(GUARDED):
            await self._app(scope, receive, send)
            return
        state, arrival, status = scope.setdefault("state", {}), arrival_of(scope), None

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except Exception:
            status = status or 500  # what is outside of here will say
            state.setdefault("error", "internal_error")
            raise
        finally:
            log.info(json.dumps(self._line(scope, arrival, status)))

    def _line(self, scope: Scope, arrival: Arrival, status: int | None) -> dict[str, Any]:
        """Times as seconds. ``status`` None: the client was gone before its answer began."""
        state = scope["state"]
        tenant, generation = state.get("tenant"), state.get("generation")
        finished: Finished | None = None if generation is None else generation.told
        told = {} if finished is None else _told(finished)
        error = state.get("error") or told.get("error")
        return {
            "time": arrival.at_ns / 1e9,
            "route": self._route(scope),
            "status": status,
            "seconds": round(time.monotonic() - arrival.at_s, 6),
            **told,
            "tenant": None if tenant is None else tenant.name,
            "error": "abort" if error is None and status is None else error,
        }

    def _route(self, scope: Scope) -> str:
        found: str | None = getattr(scope.get("route"), "path", None)
        return found or self._paths.find(scope["path"]) or UNKNOWN


def _told(finished: Finished) -> dict[str, Any]:
    fields = {name: value for name, value in asdict(finished).items() if name not in TIMES}
    first = finished.first_ns
    return {**fields, "ttft_s": None if first is None else round((first - finished.started_ns) / 1e9, 6)}

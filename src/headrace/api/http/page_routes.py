"""The page at ``/`` and what it shows of the load. Plain files, no build step, nothing from elsewhere."""

from __future__ import annotations

from pathlib import Path

import msgspec
from fastapi import APIRouter, Response

from .errors import HttpError
from .host import EngineHost
from .plain_routes import LOOKED_AT, json_response

FOLDER = Path(__file__).parent / "page"
SCRIPT = "text/javascript; charset=utf-8"
FILES = {"page.css": "text/css; charset=utf-8", "page.js": SCRIPT, "load.js": SCRIPT}
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


def page_routes(host: EngineHost) -> APIRouter:
    """The page, its files and the numbers it asks for every second."""
    router = APIRouter()

    @router.api_route("/", methods=LOOKED_AT)
    async def page() -> Response:
        return Response((FOLDER / "index.html").read_bytes(), 200, HEADERS, "text/html; charset=utf-8")

    @router.get("/page/{name}")
    async def file(name: str) -> Response:
        if name not in FILES:
            raise HttpError(404, f"there is no file {name}")
        return Response((FOLDER / name).read_bytes(), 200, HEADERS, FILES[name])

    @router.get("/load")
    async def load() -> Response:
        stats, counted = host.llm.client.stats, host.metrics.values
        return json_response(
            {
                "model": host.names[0],
                "ready": host.ready,
                "chats": host.chats,
                "needs_key": host.tenancy is not None,
                "open": host.num_open,
                "running": stats.running,
                "waiting": stats.waiting,
                "kv_usage": stats.used_blocks / stats.num_blocks if stats.num_blocks else 0.0,
                "prefix_queries": stats.prefix_queries,
                "prefix_hits": stats.prefix_hits,
                "preemptions": stats.preemptions,
                "generation_tokens": int(counted["generation_tokens"][()]),
                "last_steps": [msgspec.to_builtins(step) for step in stats.last_steps],
            }
        )

    return router

"""Tenants at the door: who sends a request, and the view of all of them. Without tenants everybody may come in."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import APIRouter, Request, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from ..protocol.sse import to_json
from ..tenants.registry import Tenant
from ..tenants.tenancy import Tenancy
from .errors import HttpError, unavailable

GUARDED = ("/v1/", "/tokenize", "/detokenize", "/admin/", "/debug/")
NO_KEY = "invalid_api_key"
FLUSH_PERIOD_S = 1.0

log = logging.getLogger("headrace.serve")


def tenant_of(request: Request) -> Tenant | None:
    """Whose request it is; None where no tenants are configured."""
    found: Tenant | None = request.scope.get("state", {}).get("tenant")
    return found


def admit(tenancy: Tenancy | None, request: Request) -> Tenant | None:
    """Whose request it is, counted against that tenant's rate before anything is read. Raises OverLimit."""
    tenant = tenant_of(request)
    if tenancy is not None and tenant is not None:
        tenancy.admit_request(tenant)
    return tenant


def require_admin(request: Request) -> None:
    """Raises HttpError 403 for everybody else."""
    tenant = tenant_of(request)
    if tenant is None or not tenant.admin:
        raise HttpError(403, "this is for admins", code="not_admin")


class Guarded:
    """Asks for a key on every route that does work. Plain ASGI, like ``Counted``."""

    def __init__(self, app: ASGIApp, tenancy: Tenancy) -> None:
        self._app = app
        self._tenancy = tenancy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith(GUARDED) and scope["method"] != "OPTIONS":
            tenant = self._tenancy.registry.find(_key(Request(scope)))
            if tenant is None:
                scope.setdefault("state", {})["error"] = NO_KEY
                await _refusal(scope["path"])(scope, receive, send)
                return
            scope.setdefault("state", {})["tenant"] = tenant
        await self._app(scope, receive, send)


def _key(request: Request) -> str:
    """From OpenAI's header or Anthropic's."""
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and key:
        return key.strip()
    return request.headers.get("x-api-key", "")


def _refusal(path: str) -> Response:
    words = "a valid API key is needed: send Authorization: Bearer KEY, or x-api-key"
    error = HttpError(401, words, code=NO_KEY)
    body = error.anthropic() if path.startswith("/v1/messages") else error.openai()
    return Response(to_json(body), 401, {"WWW-Authenticate": "Bearer"}, "application/json")


def tenant_routes(tenancy: Tenancy) -> APIRouter:
    """``/admin/tenants``, for tenants that are admins."""
    router = APIRouter()

    @router.get("/admin/tenants")
    async def view(request: Request) -> Response:
        require_admin(request)
        try:
            totals = await tenancy.usage.read()
        except sqlite3.Error as error:
            raise unavailable(f"the database of usage cannot be used: {error}") from error
        return Response(to_json({"tenants": tenancy.view(totals)}), 200, None, "application/json")

    return router


@asynccontextmanager
async def accounting(tenancy: Tenancy | None) -> AsyncIterator[None]:
    """Writes usage down while the server runs, and once more at its end."""
    if tenancy is None:
        yield
        return
    task = asyncio.create_task(_flush_often(tenancy))
    try:
        yield
    finally:
        task.cancel()
        await _flush(tenancy)


async def _flush_often(tenancy: Tenancy) -> None:
    while True:
        await asyncio.sleep(FLUSH_PERIOD_S)
        await _flush(tenancy)


async def _flush(tenancy: Tenancy) -> None:
    """What cannot be written is kept for the next time."""
    try:
        await tenancy.usage.write()
    except sqlite3.Error as error:
        log.error("usage could not be written: %s", error)

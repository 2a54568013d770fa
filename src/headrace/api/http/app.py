"""The application: routes, error shapes, middleware. Builds no engine: it is given a host."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.middleware.cors import CORSMiddleware
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.contract.errors import HeadraceError

from ..protocol.chat_body import ChatBody
from ..protocol.messages_body import CountBody, MessagesBody
from ..protocol.responses_body import ResponsesBody
from ..protocol.text_body import TextBody
from .arrivals import arrival_of
from .embedding_routes import embedding_routes
from .embeddings import Embeddings
from .errors import HttpError, as_http
from .extent import check_extent
from .host import EngineHost
from .jobs import Job, chat_job, messages_ids, messages_job, new_id, responses_job, text_job
from .observed import Observed, wishes_of
from .page_routes import page_routes
from .paths import UNKNOWN, Paths
from .plain_routes import json_response, plain_routes
from .profile_routes import profile_routes
from .reply import StreamReply, WholeReply
from .request_log import RequestLog
from .tenants import Guarded, accounting, admit, tenant_of, tenant_routes

log = logging.getLogger("headrace.serve")
SWITCHED = {"/admin/tenants": "--tenants", "/v1/embeddings": "--embedding-model", "/debug/profile": "--profile"}
FOR_PAGES = ("x-request-id", "retry-after")  # headers that a page of another origin may read, too

Asked = TypeVar("Asked", ChatBody, TextBody, MessagesBody, ResponsesBody)


@dataclass(frozen=True, slots=True)
class AppSettings:
    """``cors_origins``: pages that may call from a browser. ``vllm_metrics``: vLLM's names too. ``profile``: whether
    ``/debug/profile`` is there. ``embeddings``: the encoder, if one is served. ``log_requests``: a line for each."""

    cors_origins: Sequence[str] = ()
    vllm_metrics: bool = False
    profile: bool = False
    embeddings: Embeddings | None = None
    log_requests: bool = False


def build_app(host: EngineHost, settings: AppSettings | None = None) -> FastAPI:
    """The whole HTTP surface over ``host``. The host's watcher lives as long as the application."""
    settings = settings or AppSettings()

    @asynccontextmanager
    async def life(_app: FastAPI) -> AsyncIterator[None]:
        host.watch()
        async with accounting(host.tenancy):
            yield
        if settings.embeddings is not None:
            await asyncio.to_thread(settings.embeddings.process.close)

    app = FastAPI(title="Headrace", lifespan=life, docs_url=None, redoc_url=None, openapi_url=None)
    encoder = host.encoder = None if settings.embeddings is None else settings.embeddings.name
    routers = [plain_routes(host, settings.vllm_metrics, encoder), page_routes(host)]
    if settings.embeddings is not None:
        routers.append(embedding_routes(host, settings.embeddings))
    if settings.profile:
        routers.append(profile_routes(host))
    if host.tenancy is not None:
        routers.append(tenant_routes(host.tenancy))
    _add_generation(app, host)
    paths = Paths()
    for router in (app.router, *routers):
        paths.add(router.routes)
    for router in routers:
        app.include_router(_with_heads(router))
    _add_errors(app, paths)
    if host.tenancy is not None:
        app.add_middleware(Guarded, tenancy=host.tenancy)
    app.add_middleware(Unforeseen)
    app.add_middleware(Counted, host=host, paths=paths)
    app.add_middleware(Observed, observers=host.observers, model=host.names[0])
    if settings.log_requests:
        app.add_middleware(RequestLog, paths=paths)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.cors_origins),
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=FOR_PAGES,
        )
    return app


def _with_heads(router: APIRouter) -> APIRouter:
    """HEAD as GET, whose body the server then leaves out: what watches servers asks so."""
    for route in router.routes:
        if isinstance(route, APIRoute) and route.methods is not None and "GET" in route.methods:
            route.methods.add("HEAD")
    return router


def _add_generation(app: FastAPI, host: EngineHost) -> None:
    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        return await answer(host, request, ChatBody, chat_job, "chatcmpl-")

    @app.post("/v1/completions")
    async def complete(request: Request) -> Response:
        return await answer(host, request, TextBody, text_job, "cmpl-")

    @app.post("/v1/messages")
    async def messages(request: Request) -> Response:
        return await answer(host, request, MessagesBody, messages_job, "msg_")

    @app.post("/v1/messages/count_tokens")
    async def count_tokens(request: Request) -> Response:
        admit(host.tenancy, request)
        body = await host.intake.read(request, CountBody)
        host.check_model(body.model)
        ids = await host.intake.work(request, messages_ids, host, body)
        return json_response({"input_tokens": len(ids)})

    @app.post("/v1/responses")
    async def responses(request: Request) -> Response:
        return await answer(host, request, ResponsesBody, responses_job, "resp_")


async def answer(
    host: EngineHost,
    request: Request,
    schema: type[Asked],
    make_job: Callable[[EngineHost, Asked, str], Job],
    prefix: str,
) -> Response:
    """The way of every generating request: room, body, model, prompt, engine; refusals come before any work."""
    arrival = arrival_of(request.scope)  # before all else: times are told from here
    host.check_room(tenant=tenant_of(request))
    arrival.tenant = admit(host.tenancy, request)
    body = await host.intake.read(request, schema)
    host.check_model(body.model)
    arrival.model, arrival.request_id = body.model or host.names[0], (request_id := new_id(prefix))
    job = await host.intake.work(request, _checked, make_job, host, body, request_id)
    if host.observers:
        arrival.wishes = wishes_of(body.sampling(), job.streams)
    respond = StreamReply if job.streams else WholeReply
    request.state.generation = generation = host.generate(job.prepared, arrival, job.marks)
    return respond(generation, job.reply, host.limits, {"x-request-id": request_id})


def _checked(make_job: Callable[[EngineHost, Asked, str], Job], host: EngineHost, body: Asked, request_id: str) -> Job:
    job = make_job(host, body, request_id)
    check_extent(job.prepared)
    return job


def _add_errors(app: FastAPI, paths: Paths) -> None:
    @app.exception_handler(HeadraceError)
    async def expected(request: Request, error: HeadraceError) -> Response:
        return _refusal(request, as_http(error))

    @app.exception_handler(HTTPException)
    async def routing(request: Request, error: HTTPException) -> Response:
        path = request.url.path
        switch = f"; `headrace serve {SWITCHED[path]}` would add it" if path in SWITCHED else ""
        words = {
            404: f"there is no route {path}{switch or paths.hint(path)}",
            405: f"{request.method} is not for {path}",
        }
        told = words.get(error.status_code, str(error.detail))
        return _refusal(request, HttpError(error.status_code, told, allow=(error.headers or {}).get("Allow")))


def _refusal(request: Request, error: HttpError) -> Response:
    request.state.error = error.word
    speaks_anthropic = request.url.path.startswith("/v1/messages")
    return json_response(error.anthropic() if speaks_anthropic else error.openai(), error.status, error.headers)


class Unforeseen:
    """Answers what nobody foresaw, with 500: here, so that whatever counts answers or lets pages read them sees it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = scope["type"] != "http"

        async def watched(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except Exception as error:
            if begun:
                raise  # no second answer: the connection ends
            log.exception("a request failed")
            await _refusal(Request(scope), as_http(error))(scope, receive, send)


class Counted:
    """Counts answers by route and status. Plain ASGI: a wrapper that buffers would hide the client's going away."""

    def __init__(self, app: ASGIApp, host: EngineHost, paths: Paths) -> None:
        self._app = app
        self._host = host
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        begun = False

        async def counted(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                self._count(scope, message["status"])
            await send(message)

        try:
            await self._app(scope, receive, counted)
        except Exception:
            if not begun:
                self._count(scope, 500)  # what is outside of here will say
            raise

    def _count(self, scope: Scope, status: int) -> None:
        route = getattr(scope.get("route"), "path", None) or self._paths.find(scope["path"]) or UNKNOWN
        self._host.metrics.add("http_responses", 1, route, str(status))

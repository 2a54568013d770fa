"""Routes that need no generation: models, tokens, health, version, metrics."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, Request, Response

from headrace import __version__
from headrace.contract.plain import token_ids
from headrace.obs.export import CONTENT_TYPE, Exporter

from ..protocol.sse import to_json
from ..protocol.token_bodies import DetokenizeBody, TokenizeBody
from ..protocol.tools import openai_tools
from ..text.tokenizer import Tokenizer
from .errors import stopping, unavailable
from .host import EngineHost
from .jobs import chat_prompt, counted_ids, tokenizer_of
from .pieces import PiecedResponse
from .tenants import admit

LOOKED_AT = ["GET", "HEAD"]  # load balancers ask without wanting the body


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return PiecedResponse(to_json(value), status, headers, "application/json")


def plain_routes(host: EngineHost, vllm_metrics: bool, encoder: str | None = None) -> APIRouter:
    """All of them, on one router. ``encoder``: one more name among the models."""
    router = APIRouter()
    _add_models(router, host, encoder)
    _add_tokens(router, host)
    _add_state(router, host, Exporter(host.metrics, host.names[0], vllm_metrics))
    return router


def _add_models(router: APIRouter, host: EngineHost, encoder: str | None) -> None:
    def card(name: str) -> dict[str, Any]:
        known = {"id": name, "object": "model", "created": host.created, "owned_by": "headrace"}
        known |= {"type": "model", "display_name": name, "created_at": _moment(host.created)}  # Anthropic's of the same
        if name == encoder:
            return {**known, "root": name}
        return {**known, "root": host.names[0], "max_model_len": host.llm.max_model_len}

    names = [*host.names, *([] if encoder is None else [encoder])]

    @router.get("/v1/models")
    async def models() -> Response:
        whole = {"has_more": False, "first_id": names[0], "last_id": names[-1]}  # Anthropic's clients turn pages
        return json_response({"object": "list", "data": [card(name) for name in names], **whole})

    @router.get("/v1/models/{name:path}")
    async def model(name: str) -> Response:
        if not name:  # a slash at the end
            return await models()
        if name != encoder:
            host.check_model(name)
        return json_response(card(name))


def _moment(unix_s: int) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _add_tokens(router: APIRouter, host: EngineHost) -> None:
    @router.post("/tokenize")
    async def tokenize(request: Request) -> Response:
        admit(host.tenancy, request)
        body = await host.intake.read(request, TokenizeBody)
        host.check_model(body.model)
        body.check()
        return await host.intake.work(request, _tokenized, host, body)

    @router.post("/detokenize")
    async def detokenize(request: Request) -> Response:
        admit(host.tenancy, request)
        body = await host.intake.read(request, DetokenizeBody)
        host.check_model(body.model)
        return await host.intake.work(request, _detokenized, host, body)

    @router.get("/tokenizer_info")
    async def tokenizer_info() -> Response:
        """What a client needs to tokenize here and to render conversations itself, as evaluation harnesses do."""
        return json_response(_told(tokenizer_of(host, "model")))


def _told(tokenizer: Tokenizer) -> dict[str, Any]:
    bos, eos = tokenizer.bos_id, tokenizer.eos_ids[:1]
    return {
        "vocab_size": tokenizer.vocab_size,
        "bos_token": None if bos is None else tokenizer.token_text(bos),
        "eos_token": tokenizer.token_text(eos[0]) if eos else None,
        "pad_token": None,
        "chat_template": tokenizer.chat_template,
    }


def _detokenized(host: EngineHost, body: DetokenizeBody) -> Response:
    tokenizer = tokenizer_of(host, "tokens")
    ids = token_ids("tokens", body.tokens, host.llm.vocab_size)
    return json_response({"prompt": tokenizer.decode(ids, skip_special=False)})


def _tokenized(host: EngineHost, body: TokenizeBody) -> Response:
    if body.messages is not None:
        tokenizer = tokenizer_of(host, "messages")
        prompt = chat_prompt(
            host,
            body.messages,
            tools=openai_tools(body.tools, None, None).for_template(),
            variables=body.chat_template_kwargs,
            add_generation_prompt=body.add_generation_prompt,
        )
        ids = counted_ids(host, prompt)
    else:
        tokenizer = tokenizer_of(host, "prompt")
        ids = tokenizer.encode(body.prompt or "", add_special=body.add_special_tokens)
    found: dict[str, Any] = {"count": len(ids), "max_model_len": host.llm.max_model_len, "tokens": ids}
    if body.return_token_strs:
        found["token_strs"] = [tokenizer.token_text(i) for i in ids]
    return json_response(found)


def _add_state(router: APIRouter, host: EngineHost, exporter: Exporter) -> None:
    @router.api_route("/health", methods=LOOKED_AT)
    async def health() -> Response:
        """Alive, as long as an engine is there or coming back."""
        return json_response({"status": "ok" if host.llm.client.alive else "engine restarting"})

    @router.api_route("/ready", methods=LOOKED_AT)
    async def ready() -> Response:
        """Whether to send work here."""
        if not host.ready:
            raise stopping() if host.draining else unavailable("the engine is starting again")
        return json_response({"status": "ready"})

    @router.get("/version")
    async def version() -> Response:
        return json_response({"version": __version__})

    @router.get("/metrics")
    async def metrics() -> Response:
        host.refresh_metrics()
        return Response(exporter.text(), media_type=CONTENT_TYPE)

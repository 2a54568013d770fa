"""``/v1/embeddings``, where the server was started with an encoder beside its model."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from ..embedding_process import EmbeddingProcess
from ..protocol.embeddings_body import EmbeddingsBody, embeddings_reply
from .errors import HttpError, too_busy
from .host import EngineHost
from .plain_routes import json_response
from .tenants import admit

MAX_OPEN = 64  # requests in the encoder's queue


class Embeddings:
    """``name``: what clients may call the encoder."""

    def __init__(self, process: EmbeddingProcess, name: str) -> None:
        self.process = process
        self.name = name
        self.num_open = 0


def embedding_routes(host: EngineHost, embeddings: Embeddings) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/embeddings")
    async def embed(request: Request) -> Response:
        host.check_open()
        tenancy = host.tenancy
        tenant = admit(tenancy, request)
        body = await host.intake.read(request, EmbeddingsBody)
        if body.model not in (None, embeddings.name):
            fault = "makes no embeddings" if body.model in host.names else "does not exist"
            words = f"the model {body.model!r} {fault}; served for embeddings: {embeddings.name}"
            raise HttpError(404, words, field="model", code="model_not_found")
        ids = await host.intake.work(request, _ids, embeddings.process, body)
        tokens = sum(map(len, ids))
        if tenancy is not None and tenant is not None:
            tenancy.admit_prompt(tenant, tokens)
            tenancy.usage.add(tenant.name, requests=1, prompt_tokens=tokens)
        return json_response(embeddings_reply(body, embeddings.name, await _vectors(embeddings, ids), tokens))

    return router


def _ids(process: EmbeddingProcess, body: EmbeddingsBody) -> list[list[int]]:
    texts, many = body.inputs(process.inputs.size), isinstance(body.input, list)
    return [process.inputs.ids(text, f"input[{i}]" if many else "input") for i, text in enumerate(texts)]


async def _vectors(embeddings: Embeddings, ids: list[list[int]]) -> list[list[float]]:
    if embeddings.num_open >= MAX_OPEN:
        raise too_busy(MAX_OPEN)
    embeddings.num_open += 1
    try:
        return await embeddings.process.vectors(ids)
    finally:
        embeddings.num_open -= 1

"""``/v1/embeddings``, where the server was started with an encoder beside its model."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from ..embedding_process import EmbeddingProcess
from ..protocol.embeddings_body import EmbeddingsBody, embeddings_reply
from .arrivals import Arrival, Finished, arrival_of
from .embeddings import Embeddings
from .errors import HttpError
from .host import EngineHost
from .plain_routes import json_response
from .tenants import admit, tenant_of


def embedding_routes(host: EngineHost, embeddings: Embeddings) -> APIRouter:
    """Connects ``embeddings`` to the host's tenants and to its end."""
    router = APIRouter()
    if host.tenancy is not None:
        embeddings.take_turns(host.tenancy)
    host.when_draining.append(embeddings.process.leave)
    host.when_ending.append(embeddings.end)
    host.others.append(lambda: embeddings.num_open)

    @router.post("/v1/embeddings")
    async def embed(request: Request) -> Response:
        arrival = arrival_of(request.scope)
        host.check_open()
        embeddings.check_room(tenant_of(request))
        arrival.tenant = tenant = admit(host.tenancy, request)
        body = await host.intake.read(request, EmbeddingsBody)
        if body.model not in (None, embeddings.name):
            fault = "makes no embeddings" if body.model in host.names else "does not exist"
            words = f"the model {body.model!r} {fault}; served for embeddings: {embeddings.name}"
            raise HttpError(404, words, field="model", code="model_not_found")
        arrival.model = embeddings.name
        arrival.wishes = {"gen_ai.request.encoding_formats": [body.encoding_format]}
        with embeddings.place(tenant):
            ids = await host.intake.work(request, _ids, embeddings.process, body)
            vectors = await embeddings.vectors(request.receive, tenant, ids)
        request.state.finished = _finished(arrival, embeddings.name, tokens := sum(map(len, ids)))
        return json_response(embeddings_reply(body, embeddings.name, vectors, tokens))

    return router


def _finished(arrival: Arrival, model: str, tokens: int) -> Finished:
    tenant = None if arrival.tenant is None else arrival.tenant.name
    return Finished("", arrival.operation, model, tenant, arrival.at_ns, None, arrival.now_ns(), prompt_tokens=tokens)


def _ids(process: EmbeddingProcess, body: EmbeddingsBody) -> list[list[int]]:
    texts, many = body.inputs(process.inputs.size), isinstance(body.input, list)
    return [process.inputs.ids(text, f"input[{i}]" if many else "input") for i, text in enumerate(texts)]

"""Tells observers of every request that a model works for, answered, refused or cut. Changes nothing of an answer.

Costs nothing while nobody observes. Never holds a prompt, an answer or a key, and names no model that is not served.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.contract.request import SamplingParams

from .arrivals import OPERATIONS, Arrival, Finished, Observer, arrival_of


class Observed:
    """Plain ASGI, around all that may refuse. Reads ``generation``, ``finished`` and ``error`` of the request's state:
    what was made of it, what another operation says of itself, and the refusal's word."""

    def __init__(self, app: ASGIApp, observers: list[Observer], model: str) -> None:
        self._app = app
        self._observers = observers
        self._model = model

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._observers or scope["type"] != "http" or scope["path"] not in OPERATIONS:
            await self._app(scope, receive, send)
            return
        arrival, state = arrival_of(scope), scope["state"]

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                arrival.status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except Exception:
            arrival.status = arrival.status or 500  # what is outside of here will say
            state.setdefault("error", "internal_error")
            raise
        finally:
            finished = self._finished(state, arrival)
            for observer in self._observers:
                observer(finished, arrival)

    def _finished(self, state: dict[str, Any], arrival: Arrival) -> Finished:
        error, generation = state.get("error"), state.get("generation")
        arrival.tenant = arrival.tenant or state.get("tenant")
        told: Finished | None = state.get("finished") if generation is None else generation.told
        if told is not None:
            return told if error is None else replace(told, error=error)
        if error is None and arrival.status is None:
            error = "abort"
        tenant = None if arrival.tenant is None else arrival.tenant.name
        times = (arrival.at_ns, None, arrival.now_ns())
        return Finished(arrival.request_id, arrival.operation, self._model, tenant, *times, error=error)


def wishes_of(sampling: SamplingParams, stream: bool) -> dict[str, Any]:
    """What a generating request asked for, by the names of the semantic conventions; what it left open is left out."""
    wished: dict[str, Any] = {
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.request.stream": stream,
    }
    further: dict[str, Any] = {
        "gen_ai.request.max_tokens": sampling.max_tokens,
        "gen_ai.request.seed": sampling.seed,
        "gen_ai.request.top_k": sampling.top_k if sampling.top_k > 0 else None,
        "gen_ai.request.choice.count": sampling.n if sampling.n != 1 else None,
        "gen_ai.request.frequency_penalty": sampling.frequency_penalty or None,
        "gen_ai.request.presence_penalty": sampling.presence_penalty or None,
        "gen_ai.output.type": "json" if _wants_json(sampling) else None,
    }
    return wished | {name: value for name, value in further.items() if value is not None}


def _wants_json(sampling: SamplingParams) -> bool:
    wanted = sampling.structured_outputs
    return wanted is not None and (wanted.json is not None or bool(wanted.json_object))

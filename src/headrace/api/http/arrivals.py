"""What is known of a request besides its content: when it came, whose it is, how it went. For logs and traces.

Never holds a prompt, an answer or a key.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.types import Scope

from ..tenants.registry import Tenant

OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}
"""Routes that a model works for, and what OpenTelemetry's GenAI conventions call that."""
TRACE_HEADERS = ("traceparent", "tracestate")  # W3C's


@dataclass(slots=True)
class Arrival:
    """Begun when the request comes, before its body is read; filled as it is understood. ``model``: the name it asked
    for, once that is known to be served here. ``wishes``: what it asked of the model, by the conventions' names, where
    somebody observes. ``trace``: W3C's headers, as they came. ``server``: where it came in, host and port. ``status``:
    of the answer, once it has begun."""

    operation: str = "chat"
    request_id: str = ""
    tenant: Tenant | None = None
    model: str | None = None
    wishes: Mapping[str, Any] = field(default_factory=dict)
    trace: Mapping[str, str] = field(default_factory=dict)
    server: tuple[str, int | None] | None = None
    status: int | None = None
    at_ns: int = field(default_factory=time.time_ns)  # since 1970
    at_s: float = field(default_factory=time.monotonic)

    def now_ns(self) -> int:
        """Since 1970, by the clock that nobody sets: no time of a request lies before its beginning."""
        return self.at_ns + int((time.monotonic() - self.at_s) * 1e9)


@dataclass(frozen=True, slots=True)
class Finished:
    """A request that is over. Times are nanoseconds since 1970; ``first_ns`` None: no token came. Of what was refused
    nothing was counted."""

    request_id: str
    operation: str
    model: str
    tenant: str | None
    started_ns: int
    first_ns: int | None
    ended_ns: int
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    generated_tokens: int | None = None
    finish_reasons: list[str] = field(default_factory=list)
    error: str | None = None


Observer = Callable[[Finished, Arrival], None]


def arrival_of(scope: Scope) -> Arrival:
    """The request's, whoever asks first; later ones get the same."""
    state = scope.setdefault("state", {})
    if (found := state.get("arrival")) is None:
        named = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        trace = {name: named[name] for name in TRACE_HEADERS if name in named}
        operation = OPERATIONS.get(scope["path"], "chat")
        found = state["arrival"] = Arrival(operation, trace=trace, server=scope.get("server"))
    assert isinstance(found, Arrival)
    return found

"""What goes wrong, as HTTP says it: a status, a kind and the field at fault, in the shape of the protocol asked."""

from __future__ import annotations

from typing import Any

from headrace.contract.errors import EngineDead, HeadraceError, InvalidRequest, QueueFull, WorkerError

from ..tenants.tenancy import OverLimit

RETRY_AFTER_S = 1
MAX_WORDS = 1000  # characters of a message: what a client sent is quoted in it, however long it was


class HttpError(HeadraceError):
    """An error with a status. ``kind`` is OpenAI's ``type``; ``allow``: the methods that the route has (405)."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        field: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
        allow: str | None = None,
    ) -> None:
        super().__init__(_short(message))
        self.status = status
        self.kind = kind
        self.field = None if field is None else _short(field)
        self.code = code
        self.retry_after_s = retry_after_s
        self.allow = allow

    @property
    def word(self) -> str:
        """What went wrong in one word, for logs; never what a client sent."""
        return self.code or self.kind

    @property
    def headers(self) -> dict[str, str]:
        told = {"Retry-After": self.retry_after_s, "Allow": self.allow}
        return {name: str(value) for name, value in told.items() if value is not None}

    def openai(self) -> dict[str, Any]:
        return {"error": {"message": str(self), "type": self.kind, "param": self.field, "code": self.code}}

    def anthropic(self) -> dict[str, Any]:
        return {"type": "error", "error": {"type": ANTHROPIC_KINDS.get(self.status, "api_error"), "message": str(self)}}


ANTHROPIC_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    415: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def _short(words: str) -> str:
    return words if len(words) <= MAX_WORDS else f"{words[:MAX_WORDS]}..."


def too_busy(limit: int, whose: str = "") -> HttpError:
    return _full(f"the queue is full ({limit} sequences{whose} are open); try again later")


def _full(words: str) -> HttpError:
    return HttpError(429, words, kind="rate_limit_error", code="queue_full", retry_after_s=RETRY_AFTER_S)


def unavailable(reason: str) -> HttpError:
    return HttpError(503, reason, kind="service_unavailable", code="unavailable", retry_after_s=RETRY_AFTER_S)


def stopping() -> HttpError:
    words = "the server is stopping"
    return HttpError(503, words, kind="service_unavailable", code="stopping", retry_after_s=RETRY_AFTER_S)


def as_http(error: Exception) -> HttpError:
    """Any error as one with a status; what nobody foresaw is a 500 that gives nothing away."""
    if isinstance(error, HttpError):
        return error
    if isinstance(error, QueueFull):
        return _full(str(error))
    if isinstance(error, InvalidRequest):
        return HttpError(400, str(error), field=None if error.field == "body" else error.field)
    if isinstance(error, OverLimit):
        kind = "rate_limit_error"
        return HttpError(429, str(error), kind=kind, code=error.code, retry_after_s=error.retry_after_s)
    if isinstance(error, EngineDead):
        return unavailable(str(error))
    if isinstance(error, WorkerError):
        return HttpError(500, str(error), kind="server_error", code="engine_error")
    return HttpError(500, "the server failed on this request", kind="server_error", code="internal_error")

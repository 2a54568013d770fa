"""``/v1/messages``: the answer, whole or as events."""

from __future__ import annotations

from typing import Any

from headrace.api.output import RequestOutput

from .news import News, Usage
from .sse import event

STOP_REASONS = {"stop": "end_turn", "length": "max_tokens"}


class MessagesReply:
    """One text block, opened at once and closed at the end."""

    def __init__(self, request_id: str, model: str) -> None:
        self._message: dict[str, Any] = {
            "id": request_id,
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
        }

    def begin(self, outputs: list[RequestOutput]) -> bytes:
        usage = _usage(Usage(len(outputs[0].prompt_token_ids), 0, 0))
        block = {"type": "text", "text": ""}
        return (
            event("message_start", {"type": "message_start", "message": {**self._message, "usage": usage}})
            + event("content_block_start", {"type": "content_block_start", "index": 0, "content_block": block})
            + event("ping", {"type": "ping"})
        )

    def news(self, news: News) -> bytes:
        if not news.text:
            return b""
        delta = {"type": "text_delta", "text": news.text}
        return event("content_block_delta", {"type": "content_block_delta", "index": 0, "delta": delta})

    def end(self, outputs: list[RequestOutput], usage: Usage) -> bytes:
        delta = {"type": "message_delta", "delta": _stop(outputs), "usage": _usage(usage)}
        return (
            event("content_block_stop", {"type": "content_block_stop", "index": 0})
            + event("message_delta", delta)
            + event("message_stop", {"type": "message_stop"})
        )

    def error(self, message: str, kind: str) -> bytes:  # noqa: ARG002  # kinds are OpenAI's
        return event("error", {"type": "error", "error": {"type": "api_error", "message": message}})

    def whole(self, outputs: list[RequestOutput], usage: Usage) -> dict[str, Any]:
        content = [{"type": "text", "text": outputs[0].outputs[0].text}]
        return {**self._message, "content": content, **_stop(outputs), "usage": _usage(usage)}


def _stop(outputs: list[RequestOutput]) -> dict[str, Any]:
    choice = outputs[0].outputs[0]
    if isinstance(choice.stop_reason, str):
        return {"stop_reason": "stop_sequence", "stop_sequence": choice.stop_reason}
    return {"stop_reason": STOP_REASONS[choice.finish_reason or "stop"], "stop_sequence": None}


def _usage(usage: Usage) -> dict[str, int]:
    """Cached tokens are counted apart from the others here."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }

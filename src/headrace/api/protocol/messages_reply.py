"""``/v1/messages``: the answer, whole or as events."""

from __future__ import annotations

import json
import re
from typing import Any

from headrace.api.output import RequestOutput

from .answer import Reading
from .answer_parser import AnswerReader
from .call_body import object_of
from .news import News, Usage
from .parts import CALL, TEXT, THOUGHT, Change, Part, Parts
from .sse import event

LONE = re.compile("[\ud800-\udfff]")
STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class MessagesReply:
    """Blocks of text, thinking and tool use, one after the other. ``shows_thoughts``: else their blocks are empty."""

    def __init__(
        self, request_id: str, model: str, plan: Reading | None = None, *, shows_thoughts: bool = True
    ) -> None:
        self._reader = AnswerReader(plan)
        self._shows_thoughts = shows_thoughts
        self._parts = Parts()
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
        start = {"type": "message_start", "message": {**self._message, "usage": usage}}
        return event("message_start", start) + event("ping", {"type": "ping"})

    def news(self, news: News) -> bytes:
        return b"".join(map(self._told, self._parts.take(self._reader.take(news))))

    def note(self, news: News) -> None:
        for _ in self._parts.take(self._reader.take(news)):
            pass

    def _told(self, change: Change) -> bytes:
        part = self._parts.items[change.index]
        if change.what == "open":
            name, fields = "content_block_start", {"content_block": _block(_opened(part))}
        elif change.what == "grow" and part.kind == THOUGHT and not self._shows_thoughts:
            return b""
        elif change.what == "grow":
            name, fields = "content_block_delta", {"delta": _delta(part, change.more)}
        else:
            name, fields = "content_block_stop", {}
        return event(name, {"type": name, "index": change.index, **fields})

    def end(self, outputs: list[RequestOutput], usage: Usage) -> bytes:
        last = [*self._parts.ensure_one(), *self._parts.close()]
        usage = self._reader.counted(usage, outputs)
        delta = {"type": "message_delta", "delta": self._stop(outputs), "usage": _usage(usage)}
        return (
            b"".join(map(self._told, last))
            + event("message_delta", delta)
            + event("message_stop", {"type": "message_stop"})
        )

    def error(self, message: str, kind: str) -> bytes:  # noqa: ARG002  # kinds are OpenAI's
        return event("error", {"type": "error", "error": {"type": "api_error", "message": message}})

    def whole(self, outputs: list[RequestOutput], usage: Usage) -> dict[str, Any]:
        list(self._parts.ensure_one())
        shown = [_opened(p) if p.kind == THOUGHT and not self._shows_thoughts else p for p in self._parts.items]
        usage = self._reader.counted(usage, outputs)
        return {**self._message, "content": [*map(_block, shown)], **self._stop(outputs), "usage": _usage(usage)}

    def _stop(self, outputs: list[RequestOutput]) -> dict[str, Any]:
        choice = outputs[0].outputs[0]
        if isinstance(choice.stop_reason, str):
            return {"stop_reason": "stop_sequence", "stop_sequence": choice.stop_reason}
        reason = self._reader.of(0).finish_reason(choice.finish_reason or "stop")
        return {"stop_reason": STOP_REASONS[reason or "stop"], "stop_sequence": None}


def _opened(part: Part) -> Part:
    """The part as it begins."""
    return Part(part.kind, "", part.id, part.name)


def _block(part: Part) -> dict[str, Any]:
    if part.kind == CALL:
        arguments = object_of(part.text) if part.complete else None
        return {"type": "tool_use", "id": part.id, "name": part.name, "input": _writable(arguments or {})}
    if part.kind == TEXT:
        return {"type": "text", "text": part.text}
    return {"type": "thinking", "thinking": part.text, "signature": ""}


def _writable(arguments: dict[str, Any]) -> dict[str, Any]:
    """The same with a replacement character for each half of a pair: it is told as an object here, not as its text."""
    written = json.dumps(arguments, ensure_ascii=False)
    clean = LONE.sub("\N{REPLACEMENT CHARACTER}", written)
    value: dict[str, Any] = arguments if clean == written else json.loads(clean)
    return value


def _delta(part: Part, more: str) -> dict[str, Any]:
    if part.kind == CALL:
        return {"type": "input_json_delta", "partial_json": more}
    if part.kind == TEXT:
        return {"type": "text_delta", "text": more}
    return {"type": "thinking_delta", "thinking": more}


def _usage(usage: Usage) -> dict[str, Any]:
    """Cached tokens are counted apart from the others here."""
    thoughts = usage.thought_tokens
    return ({} if thoughts is None else {"output_tokens_details": {"thinking_tokens": thoughts}}) | {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }

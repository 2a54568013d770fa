"""``/v1/responses``: the answer, whole or as its numbered events."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from headrace.api.output import RequestOutput

from ..text.tokenizer import Tokenizer
from .answer import Reading
from .answer_parser import AnswerReader
from .logprobs import chat_logprobs
from .news import News, Usage
from .parts import CALL, TEXT, THOUGHT, Change, Part, Parts
from .responses_body import ResponsesBody
from .sse import event

STREAMS = {
    TEXT: "response.output_text",
    THOUGHT: "response.reasoning_text",
    CALL: "response.function_call_arguments",
}


class ResponsesReply:
    """Items of reasoning, message and function call. What the request asked is told back in every snapshot.

    Logprobs are those of all tokens: where they are asked for, the answer is one text (``refuse_logprobs``)."""

    def __init__(
        self, request_id: str, model: str, body: ResponsesBody, tokenizer: Tokenizer, plan: Reading | None = None
    ) -> None:
        self._reader = AnswerReader(plan)
        self._tokenizer, self._num_top = tokenizer, body.num_top
        self._scores: list[dict[str, Any]] = []
        self._told_scores = 0
        self._parts = Parts()
        self._cut = False
        self._number = 0
        self._snapshot: dict[str, Any] = {
            "id": request_id,
            "object": "response",
            "created_at": int(time.time()),
            "model": model,
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {"effort": body.effort, "summary": None},
            "store": False,
            "temperature": 1.0 if body.temperature is None else body.temperature,
            "text": {"format": body.format or {"type": "text"}},
            "top_logprobs": body.top_logprobs or 0,
            "tool_choice": body.tool_choice or "auto",
            "tools": body.tools or [],
            "top_p": 1.0 if body.top_p is None else body.top_p,
            "truncation": "disabled",
            **({} if body.user is None else {"user": body.user}),  # this and usage are never null in OpenAI's schema
        }

    def _state(self, status: str, output: list[Any], usage: Usage | None, **more: Any) -> dict[str, Any]:
        known = {} if usage is None else {"usage": _usage(usage)}
        return {**self._snapshot, "status": status, "output": output, **known, **more}

    def _item(self, index: int, status: str, *, empty: bool = False) -> dict[str, Any]:
        part = self._parts.items[index]
        text = "" if empty else part.text
        if part.kind == CALL:
            call = {"type": "function_call", "id": self._id("fc_", index), "call_id": part.id, "name": part.name}
            return {**call, "arguments": text, "status": status}
        if part.kind == TEXT:
            content = [] if empty else [_part(text, self._scores)]
            message = {"id": self._id("msg_", index), "type": "message", "status": status}
            return {**message, "role": "assistant", "content": content}
        content = [] if empty else [_thought(text)]
        item = {"id": self._id("rs_", index), "type": "reasoning", "status": status, "summary": []}
        return {**item, "content": content}

    def _id(self, prefix: str, index: int) -> str:
        return f"{prefix}{self._snapshot['id'].removeprefix('resp_')}{index or ''}"

    def _event(self, name: str, /, **fields: Any) -> bytes:
        number, self._number = self._number, self._number + 1
        return event(name, {"type": name, "sequence_number": number, **fields})

    def begin(self, outputs: list[RequestOutput]) -> bytes:  # noqa: ARG002  # the Reply protocol's shape
        state = self._state("in_progress", [], None)
        return self._event("response.created", response=state) + self._event("response.in_progress", response=state)

    def news(self, news: News) -> bytes:
        return b"".join(map(self._told, self._taken(news)))

    def note(self, news: News) -> None:
        for _ in self._taken(news):
            pass

    def _taken(self, news: News) -> Iterator[Change]:
        if news.logprobs is not None and self._num_top is not None:
            self._scores += chat_logprobs(news.logprobs, news.token_ids, self._num_top, self._tokenizer)["content"]
        return self._parts.take(self._reader.take(news))

    def _new_scores(self) -> list[dict[str, Any]]:
        """Also of tokens before, whose text is out only now."""
        new, self._told_scores = self._scores[self._told_scores :], len(self._scores)
        return new

    def _told(self, change: Change) -> bytes:
        index, kind = change.index, self._parts.items[change.index].kind
        place = {"item_id": self._item(index, "in_progress")["id"], "output_index": index}
        if kind != CALL:
            place["content_index"] = 0
        if change.what == "open":
            return self._opened(index, kind, place)
        if change.what == "grow":
            extra: dict[str, Any] = {"logprobs": self._new_scores()} if kind == TEXT else {}
            return self._event(f"{STREAMS[kind]}.delta", **place, delta=change.more, **extra)
        return self._closed(index, kind, place)

    def _opened(self, index: int, kind: str, place: dict[str, Any]) -> bytes:
        item = self._item(index, "in_progress", empty=True)
        told = self._event("response.output_item.added", output_index=index, item=item)
        if kind == CALL:
            return told
        part = _part("", []) if kind == TEXT else _thought("")
        return told + self._event("response.content_part.added", **place, part=part)

    def _closed(self, index: int, kind: str, place: dict[str, Any]) -> bytes:
        part = self._parts.items[index]
        item = self._item(index, self._status_of(part))
        if kind == CALL:
            told = self._event(f"{STREAMS[kind]}.done", **place, name=part.name, arguments=part.text)
        else:
            extra: dict[str, Any] = {"logprobs": self._scores} if kind == TEXT else {}
            told = self._event(f"{STREAMS[kind]}.done", **place, text=part.text, **extra)
            told += self._event("response.content_part.done", **place, part=item["content"][0])
        return told + self._event("response.output_item.done", output_index=index, item=item)

    def _status_of(self, part: Part) -> str:
        """A part that was cut off is the last one."""
        if part.kind == CALL:
            return "completed" if part.complete else "incomplete"
        return "incomplete" if self._cut and part is self._parts.items[-1] else "completed"

    def end(self, outputs: list[RequestOutput], usage: Usage) -> bytes:
        self._cut = _is_cut(outputs)
        last = [*self._parts.ensure_one(), *self._parts.close()]
        told = b"".join(map(self._told, last))
        final = self.whole(outputs, usage)
        return told + self._event(f"response.{final['status']}", response=final)

    def error(self, message: str, kind: str) -> bytes:  # noqa: ARG002  # this protocol has codes of its own
        error = {"code": "server_error", "message": message}
        return self._event("response.failed", response=self._state("failed", [], None, error=error))

    def whole(self, outputs: list[RequestOutput], usage: Usage) -> dict[str, Any]:
        self._cut = _is_cut(outputs)
        list(self._parts.ensure_one())
        items = [self._item(i, self._status_of(part)) for i, part in enumerate(self._parts.items)]
        status = "incomplete" if self._cut else "completed"
        details = {"reason": "max_output_tokens"} if self._cut else None
        return self._state(status, items, self._reader.counted(usage, outputs), incomplete_details=details)


def _is_cut(outputs: list[RequestOutput]) -> bool:
    return outputs[0].outputs[0].finish_reason == "length"


def _thought(text: str) -> dict[str, Any]:
    return {"type": "reasoning_text", "text": text}


def _part(text: str, scores: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": scores}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.thought_tokens or 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }

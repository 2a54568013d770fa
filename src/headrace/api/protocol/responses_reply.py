"""``/v1/responses``: the answer, whole or as its numbered events."""

from __future__ import annotations

import time
from typing import Any

from headrace.api.output import RequestOutput

from .news import News, Usage
from .responses_body import ResponsesBody
from .sse import event


class ResponsesReply:
    """One message item with one text part. What the request asked is told back in every snapshot."""

    def __init__(self, request_id: str, model: str, body: ResponsesBody) -> None:
        self._item_id = request_id.replace("resp_", "msg_", 1)
        self._number = 0
        self._snapshot = {
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
            "reasoning": {"effort": None, "summary": None},
            "store": False,
            "temperature": 1.0 if body.temperature is None else body.temperature,
            "text": {"format": body.format or {"type": "text"}},
            "tool_choice": body.tool_choice or "auto",
            "tools": body.tools or [],
            "top_p": 1.0 if body.top_p is None else body.top_p,
            "truncation": "disabled",
            "user": body.user,
        }

    def _state(self, status: str, output: list[Any], usage: Usage | None, **more: Any) -> dict[str, Any]:
        return {**self._snapshot, "status": status, "output": output, "usage": _usage(usage), **more}

    def _item(self, status: str, text: str | None) -> dict[str, Any]:
        content = [] if text is None else [_part(text)]
        return {"id": self._item_id, "type": "message", "status": status, "role": "assistant", "content": content}

    def _event(self, name: str, **fields: Any) -> bytes:
        number, self._number = self._number, self._number + 1
        return event(name, {"type": name, "sequence_number": number, **fields})

    def _in_part(self, name: str, **fields: Any) -> bytes:
        return self._event(name, item_id=self._item_id, output_index=0, content_index=0, **fields)

    def begin(self, outputs: list[RequestOutput]) -> bytes:  # noqa: ARG002  # the Reply protocol's shape
        state = self._state("in_progress", [], None)
        return (
            self._event("response.created", response=state)
            + self._event("response.in_progress", response=state)
            + self._event("response.output_item.added", output_index=0, item=self._item("in_progress", None))
            + self._in_part("response.content_part.added", part=_part(""))
        )

    def news(self, news: News) -> bytes:
        return self._in_part("response.output_text.delta", delta=news.text, logprobs=[]) if news.text else b""

    def end(self, outputs: list[RequestOutput], usage: Usage) -> bytes:
        final = self.whole(outputs, usage)
        item = final["output"][0]
        text = item["content"][0]["text"]
        return (
            self._in_part("response.output_text.done", text=text, logprobs=[])
            + self._in_part("response.content_part.done", part=_part(text))
            + self._event("response.output_item.done", output_index=0, item=item)
            + self._event(f"response.{final['status']}", response=final)
        )

    def error(self, message: str, kind: str) -> bytes:  # noqa: ARG002  # this protocol has codes of its own
        error = {"code": "server_error", "message": message}
        return self._event("response.failed", response=self._state("failed", [], None, error=error))

    def whole(self, outputs: list[RequestOutput], usage: Usage) -> dict[str, Any]:
        choice = outputs[0].outputs[0]
        cut = choice.finish_reason == "length"
        status = "incomplete" if cut else "completed"
        details = {"reason": "max_output_tokens"} if cut else None
        return self._state(status, [self._item(status, choice.text)], usage, incomplete_details=details)


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _usage(usage: Usage | None) -> dict[str, Any] | None:
    if usage is None:
        return None
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }

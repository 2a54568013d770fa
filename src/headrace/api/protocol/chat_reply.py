"""``/v1/chat/completions``: the answer, whole or as chunks."""

from __future__ import annotations

from typing import Any

from headrace.api.output import CompletionOutput, RequestOutput

from ..text.tokenizer import Tokenizer
from .answer import Answer, CallBegun, CallGrew, Event, Reading, Said, Thought
from .answer_parser import AnswerReader
from .logprobs import chat_logprobs, prompt_logprobs
from .news import News, Usage
from .sse import DONE, data


class ChatReply:
    """``num_top`` None: no logprobs. ``show_ids``: token ids beside the text, for those who ask. ``legacy``: the first
    call is told as ``function_call``, to those who gave ``functions``."""

    def __init__(
        self,
        head: dict[str, Any],
        tokenizer: Tokenizer,
        *,
        num_top: int | None = None,
        wants_usage: bool = False,
        show_ids: bool = False,
        legacy: bool = False,
        plan: Reading | None = None,
    ) -> None:
        self._reader = AnswerReader(plan)
        self._head = head
        self._chunk = {**head, "object": "chat.completion.chunk"} | ({"usage": None} if wants_usage else {})
        self._tokenizer = tokenizer
        self._num_top = num_top
        self._wants_usage = wants_usage
        self._show_ids = show_ids
        self._legacy = legacy

    def begin(self, outputs: list[RequestOutput]) -> bytes:
        """Each choice's role, so that every choice is known from the start."""
        delta = {"role": "assistant", "content": ""}
        chunks = [_chunk(choice.index, delta, None) for choice in outputs[0].outputs]
        told = [data({**self._chunk, "choices": [one]}) for one in chunks]
        if self._show_ids:
            ids = outputs[0].prompt_token_ids
            told[0] = data({**self._chunk, "choices": chunks[:1], "prompt_token_ids": ids})
        return b"".join(told)

    def _delta(self, index: int, delta: dict[str, Any], finish: str | None, **more: Any) -> bytes:
        return data({**self._chunk, "choices": [{**_chunk(index, delta, finish), **more}]})

    def news(self, news: News) -> bytes:
        more: dict[str, Any] = {}
        if news.logprobs is not None and self._num_top is not None:
            more["logprobs"] = chat_logprobs(news.logprobs, news.token_ids, self._num_top, self._tokenizer)
        if self._show_ids:
            more["token_ids"] = news.token_ids
        if news.stop_reason is not None:
            more["stop_reason"] = news.stop_reason
        delta = self._spoken(_delta(self._reader.take(news)))
        if not (delta or more or news.finish_reason):
            return b""
        finish = self._finish(self._reader.of(news.index), news.finish_reason)
        return self._delta(news.index, delta, finish, **more)

    def _spoken(self, said: dict[str, Any]) -> dict[str, Any]:
        if self._legacy and (calls := said.pop("tool_calls", None)) and not calls[0].get("index"):
            said["function_call"] = calls[0]["function"]  # there is no place for a second one
        return said

    def _finish(self, answer: Answer, reason: str | None) -> str | None:
        told = answer.finish_reason(reason)
        return "function_call" if self._legacy and told == "tool_calls" else told

    def note(self, news: News) -> None:
        self._reader.take(news)

    def end(self, outputs: list[RequestOutput], usage: Usage) -> bytes:
        if not self._wants_usage:
            return DONE
        usage = self._reader.counted(usage, outputs)
        return data({**self._chunk, "choices": [], "usage": usage.openai()}) + DONE

    def error(self, message: str, kind: str) -> bytes:
        return data({"error": {"message": message, "type": kind, "param": None, "code": None}})

    def whole(self, outputs: list[RequestOutput], usage: Usage) -> dict[str, Any]:
        choices = [self._choice(choice) for choice in outputs[0].outputs]
        usage = self._reader.counted(usage, outputs)
        body = {**self._head, "object": "chat.completion", "choices": choices, "usage": usage.openai()}
        if (scores := prompt_logprobs(outputs[0].prompt_logprobs)) is not None:
            body["prompt_logprobs"] = scores
        if self._show_ids:
            body["prompt_token_ids"] = outputs[0].prompt_token_ids
        return body

    def _choice(self, choice: CompletionOutput) -> dict[str, Any]:
        logprobs = None
        if self._num_top is not None:
            logprobs = chat_logprobs(choice.logprobs or [], choice.token_ids, self._num_top, self._tokenizer)
        answer = self._reader.of(choice.index)
        out: dict[str, Any] = {
            "index": choice.index,
            "message": self._spoken(_message(answer)),
            "logprobs": logprobs,
            "finish_reason": self._finish(answer, choice.finish_reason),
        }
        if choice.stop_reason is not None:
            out["stop_reason"] = choice.stop_reason
        return out | ({"token_ids": choice.token_ids} if self._show_ids else {})


def _chunk(index: int, delta: dict[str, Any], finish: str | None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}


def _delta(events: list[Event]) -> dict[str, Any]:
    """What is new, as one delta."""
    delta: dict[str, Any] = {}
    for event in events:
        if isinstance(event, Said):
            delta["content"] = delta.get("content", "") + event.text
        elif isinstance(event, Thought):
            delta["reasoning_content"] = delta.get("reasoning_content", "") + event.text
        elif isinstance(event, CallBegun):
            function = {"name": event.name, "arguments": ""}
            call = {"index": event.index, "id": event.id, "type": "function", "function": function}
            delta.setdefault("tool_calls", []).append(call)
        elif isinstance(event, CallGrew):
            calls = delta.setdefault("tool_calls", [])
            if not calls or calls[-1]["index"] != event.index:
                calls.append({"index": event.index, "function": {"arguments": ""}})
            calls[-1]["function"]["arguments"] += event.arguments
    return delta


def _message(answer: Answer) -> dict[str, Any]:
    content = None if answer.calls and not answer.content else answer.content
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    if answer.calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in answer.calls
        ]
    return message

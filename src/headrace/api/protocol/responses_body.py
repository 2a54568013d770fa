"""``/v1/responses``: the request, in text and function calls. Nothing is stored, so nothing can be referred back to."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from headrace.contract.errors import InvalidRequest
from headrace.contract.request import KVClass, SamplingParams

from .chat_body import Message
from .picture_parts import Part
from .structure import from_format
from .tools import ToolWish, openai_tools


class Item(msgspec.Struct, kw_only=True):
    """A message, a function call or its output. Reasoning is not told to the model again; other items are refused."""

    type: str = "message"
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: str | list[Part] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[Part] | None = None


class ResponsesBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The whole body. The last group is accepted and without effect."""

    input: str | list[Item]
    model: str | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stream: bool | None = None
    text: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    previous_response_id: str | None = None
    conversation_id: Any = msgspec.field(default=None, name="conversation")
    background: bool | None = None
    prompt: Any = None
    truncation: str | None = None
    kv_class: KVClass | None = None

    metadata: dict[str, str] | None = None
    store: bool | None = None
    include: list[str] | None = None
    parallel_tool_calls: bool | None = None
    reasoning: Any = None
    user: str | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: Any = None
    prompt_cache_retention: str | None = None
    stream_options: Any = None
    top_logprobs: int | None = None
    max_tool_calls: int | None = None

    def refuse_unserved(self) -> None:
        """What would change the answer and cannot be honoured."""
        for name, value in (("previous_response_id", self.previous_response_id), ("prompt", self.prompt)):
            if value is not None:
                raise InvalidRequest(name, "is not served: nothing is stored; send the whole conversation as input")
        if self.conversation_id is not None or self.background:
            raise InvalidRequest("background" if self.background else "conversation", "is not served")
        if self.truncation not in (None, "disabled"):
            raise InvalidRequest("truncation", "only disabled is served")

    def conversation(self) -> list[Message]:
        """Messages for the chat template."""
        first = [Message(role="system", content=self.instructions)] if self.instructions else []
        if isinstance(self.input, str):
            return [*first, Message(role="user", content=self.input)]
        if not self.input:
            raise InvalidRequest("input", "must hold at least one item")
        return first + _messages(self.input)

    def tool_wish(self) -> ToolWish:
        return openai_tools(self.tools, self.tool_choice, self.parallel_tool_calls, nested=False)

    def sampling(self) -> SamplingParams:
        return SamplingParams(
            max_tokens=self.max_output_tokens,
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            structured_outputs=None if self.format is None else from_format(self.format, "text.format"),
        )

    @property
    def format(self) -> dict[str, Any] | None:
        found = (self.text or {}).get("format")
        if found is not None and not isinstance(found, dict):
            raise InvalidRequest("text.format", "must be an object")
        return found


def _messages(items: list[Item]) -> list[Message]:
    """Calls that follow each other, and the text before them, are one message of the model."""
    out: list[Message] = []
    for i, item in enumerate(items):
        if item.type == "reasoning":
            continue
        message = _message(item, f"input[{i}]")
        if item.type == "function_call" and out and out[-1].role == "assistant":
            out[-1].tool_calls = [*(out[-1].tool_calls or []), *(message.tool_calls or [])]
        else:
            out.append(message)
    if not out:
        raise InvalidRequest("input", "must hold at least one message")
    return out


def _message(item: Item, where: str) -> Message:
    if item.type == "function_call":
        for name in ("call_id", "name", "arguments"):
            if getattr(item, name) is None:
                raise InvalidRequest(f"{where}.{name}", "is required")
        function = {"name": item.name, "arguments": item.arguments}
        return Message(role="assistant", tool_calls=[{"id": item.call_id, "type": "function", "function": function}])
    if item.type == "function_call_output":
        return Message(role="tool", content=item.output or "", tool_call_id=item.call_id)
    if item.type != "message" or item.role is None:
        raise InvalidRequest(where, f"an item of type {item.type!r} is not served: give messages with a role")
    return Message(role=item.role, content=item.content)

"""``/v1/messages`` and its ``count_tokens``: the requests (Anthropic's protocol)."""

from __future__ import annotations

import json
from typing import Any, Literal

import msgspec

from headrace.contract.errors import InvalidRequest
from headrace.contract.request import KVClass, SamplingParams

from .chat_body import Message, Placed
from .effort import effort_variables
from .picture_parts import Part
from .sampling import stop_texts
from .structure import from_format
from .tools import ToolWish, anthropic_tools


class Block(msgspec.Struct, kw_only=True):
    """One block of a message: text, image, thinking (told again where the template does), tool_use, tool_result."""

    type: str
    text: str | None = None
    thinking: str | None = None
    source: dict[str, Any] | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | list[Part] | None = None
    is_error: bool | None = None


class Turn(msgspec.Struct, kw_only=True):
    """One message; contents are text or blocks."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class Thinking(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Whether to think. ``budget_tokens`` is without effect: how many tokens it thinks is the model's affair.
    ``display``: omitted leaves the words of thoughts out of the answer."""

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: int | None = None
    display: Literal["summarized", "omitted"] | None = None


class OutputConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """``format``: what the answer must look like; ``effort``: how hard the model is to think."""

    effort: str | None = None
    format: dict[str, Any] | None = None


class CountBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What a prompt is made of."""

    messages: list[Turn]
    model: str | None = None
    system: str | list[Part] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: Thinking | None = None
    cache_control: Any = None  # prefixes are cached anyway
    output_config: OutputConfig | None = None

    def conversation(self) -> list[Message]:
        """Messages for the chat template. Raises InvalidRequest for what is not served."""
        if not self.messages:
            raise InvalidRequest("messages", "must hold at least one message")
        out = list[Message]()
        if self.system:
            places = [f"system[{i}]" for i in range(len(self.system))] if isinstance(self.system, list) else []
            out.append(Placed(role="system", content=self.system, where="system", parts=places))
        for i, turn in enumerate(self.messages):
            out += _messages(turn, f"messages[{i}]")
        return out

    def tool_wish(self) -> ToolWish:
        return anthropic_tools(self.tools, self.tool_choice)

    def variables(self) -> dict[str, Any]:
        """Templates that can think know the switch by this name."""
        effort = effort_variables(self._output.effort, "output_config.effort")
        return effort if self.thinking is None else effort | {"enable_thinking": self.thinking.type != "disabled"}

    @property
    def _output(self) -> OutputConfig:
        return self.output_config or OutputConfig()


class MessagesBody(CountBody, kw_only=True):
    """The whole body. The last group is accepted and without effect."""

    max_tokens: int
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    kv_class: KVClass | None = None

    metadata: Any = None
    service_tier: str | None = None

    @property
    def shows_thoughts(self) -> bool:
        return self.thinking is None or self.thinking.display != "omitted"

    def refuse_unserved(self) -> None:
        """What would change the answer and cannot be honoured. Counting takes it: it asks for no answer."""
        if self.messages and self.messages[-1].role == "assistant":
            words = "must not end with the assistant's: an answer always begins anew here, it does not go on with one"
            raise InvalidRequest("messages", words)

    def sampling(self) -> SamplingParams:
        formatted = self._output.format
        return SamplingParams(
            max_tokens=self.max_tokens,
            stop=stop_texts("stop_sequences", self.stop_sequences),
            temperature=1.0 if self.temperature is None else self.temperature,
            top_k=self.top_k or 0,
            top_p=1.0 if self.top_p is None else self.top_p,
            structured_outputs=None if formatted is None else from_format(formatted, "output_config.format"),
        )


def _messages(turn: Turn, where: str) -> list[Message]:
    """A turn as messages: results of tools are messages of their own, before what else the user says."""
    if isinstance(turn.content, str):
        return [Placed(role=turn.role, content=turn.content, where=where)]
    results, texts, places, calls, thought = [], [], [], [], ""
    for i, block in enumerate(turn.content):
        place = f"{where}.content[{i}]"
        if block.type == "tool_result":
            results.append(_result(block, place))
        elif block.type == "tool_use":
            calls.append(_call(block, place))
        elif block.type == "thinking":
            thought += block.thinking or ""
        elif block.type != "redacted_thinking":
            if block.type != "image" and (block.type != "text" or block.text is None):
                raise InvalidRequest(place, f"a block of type {block.type!r} is not served")
            texts.append(Part(type=block.type, text=block.text, source=block.source))
            places.append(place)
    if not (texts or calls):
        return results
    said = Placed(role=turn.role, content=texts or None, tool_calls=calls or None, where=where, parts=places)
    said.reasoning_content = thought or None
    return [*results, said]


def _result(block: Block, where: str) -> Message:
    if block.tool_use_id is None:
        raise InvalidRequest(f"{where}.tool_use_id", "is required")
    return Placed(role="tool", content=block.content or "", tool_call_id=block.tool_use_id, where=where)


def _call(block: Block, where: str) -> dict[str, Any]:
    if block.name is None:
        raise InvalidRequest(f"{where}.name", "is required")
    function = {"name": block.name, "arguments": json.dumps(block.input or {}, ensure_ascii=False)}
    return {"id": block.id or "", "type": "function", "function": function}

"""``/v1/responses``: the request, in text and function calls. Nothing is stored, so nothing can be referred back to."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from headrace.contract.errors import InvalidRequest
from headrace.contract.request import MAX_TOP_LOGPROBS, KVClass, SamplingParams

from .chat_body import Message, Placed, refuse_verbosity
from .effort import effort_variables
from .picture_parts import Part
from .sampling import check_bounds, most_tokens
from .structure import from_format
from .tools import ToolWish, openai_tools


class Item(msgspec.Struct, kw_only=True):
    """A message, a function call, its output, or the thought before one (told again where the template does). Other
    items are refused."""

    type: str = "message"
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: str | list[Part] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[Part] | None = None


class Reasoning(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How to think. Thoughts are told as they are: there is no summary of them, and ``auto`` asks for what there is."""

    effort: str | None = None
    summary: Literal["auto"] | None = None
    generate_summary: Literal["auto"] | None = None
    context: Literal["auto"] | None = None
    mode: Literal["standard"] | None = None


class TextWish(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What the text is to be."""

    format: dict[str, Any] | None = None
    verbosity: str | None = None


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    include_obfuscation: bool | None = None  # hides lengths from listeners; nothing is padded here


LOGPROBS = "message.output_text.logprobs"
EMPTY_INCLUDES = (  # of tools that are refused, of the input, and of thoughts that are told in the clear
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
    "reasoning.encrypted_content",
)


class ResponsesBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The whole body. The last group is accepted and without effect; ``max_tool_calls`` is of tools that run at the
    server, and there are none."""

    input: str | list[Item]
    model: str | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stream: bool | None = None
    text: TextWish | None = None
    reasoning: Reasoning | None = None
    top_logprobs: int | None = None
    include: list[str] | None = None
    stream_options: StreamOptions | None = None
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
    parallel_tool_calls: bool | None = None
    user: str | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: Any = None
    prompt_cache_retention: str | None = None
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
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest("stream_options", "is for streams: set stream to true")
        refuse_verbosity(None if self.text is None else self.text.verbosity, "text.verbosity")
        for i, name in enumerate(self.include or ()):
            if name != LOGPROBS and name not in EMPTY_INCLUDES:
                raise InvalidRequest(f"include[{i}]", f"there is nothing of the name {name!r}")
        if not 0 <= (self.top_logprobs or 0) <= MAX_TOP_LOGPROBS:
            raise InvalidRequest("top_logprobs", f"must lie between 0 and {MAX_TOP_LOGPROBS}, got {self.top_logprobs}")

    @property
    def num_top(self) -> int | None:
        """How many logprobs are told of each token beside its own; None: none are."""
        return self.top_logprobs or 0 if self.top_logprobs or LOGPROBS in (self.include or ()) else None

    def refuse_logprobs(self) -> None:
        """For an answer that may hold more than text: which of its tokens are the text's is not known here."""
        if self.num_top is not None:
            field = "top_logprobs" if self.top_logprobs else "include"
            raise InvalidRequest(field, "logprobs are not served beside tools, nor from a model that thinks")

    def variables(self) -> dict[str, Any]:
        """Further names for the chat template."""
        return effort_variables(self.effort, "reasoning.effort")

    @property
    def effort(self) -> str | None:
        return None if self.reasoning is None else self.reasoning.effort

    def conversation(self) -> list[Message]:
        """Messages for the chat template."""
        first = list[Message]()
        if self.instructions:
            first.append(Placed(role="system", content=self.instructions, where="instructions"))
        if isinstance(self.input, str):
            return [*first, Placed(role="user", content=self.input, where="input")]
        if not self.input:
            raise InvalidRequest("input", "must hold at least one item")
        return first + _messages(self.input)

    def tool_wish(self) -> ToolWish:
        return openai_tools(self.tools, self.tool_choice, self.parallel_tool_calls, nested=False)

    def sampling(self) -> SamplingParams:
        check_bounds(self)
        return SamplingParams(
            max_tokens=most_tokens("max_output_tokens", self.max_output_tokens),
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            logprobs=self.num_top,
            structured_outputs=None if self.format is None else from_format(self.format, "text.format"),
        )

    @property
    def format(self) -> dict[str, Any] | None:
        return None if self.text is None else self.text.format


def _messages(items: list[Item]) -> list[Message]:
    """Calls that follow each other, and the text before them, are one message of the model."""
    out: list[Message] = []
    thought = ""
    for i, item in enumerate(items):
        if item.type == "reasoning":
            thought += "".join(part.text or "" for part in item.content or () if isinstance(part, Part))
            continue
        message = _message(item, f"input[{i}]")
        message.reasoning_content = thought or None if message.role == "assistant" else None
        thought = ""
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
        call = {"id": item.call_id, "type": "function", "function": function}
        return Placed(role="assistant", tool_calls=[call], where=where)
    if item.type == "function_call_output":
        places = [f"{where}.output[{j}]" for j in range(len(item.output))] if isinstance(item.output, list) else []
        return Placed(role="tool", content=item.output or "", tool_call_id=item.call_id, where=where, parts=places)
    if item.type != "message" or item.role is None:
        raise InvalidRequest(where, f"an item of type {item.type!r} is not served: give messages with a role")
    return Placed(role=item.role, content=item.content, where=where)

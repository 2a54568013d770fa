"""``/v1/chat/completions``: the request. Messages become what chat templates read."""

from __future__ import annotations

import json
from typing import Any, Literal

import msgspec

from headrace.contract.errors import InvalidRequest
from headrace.contract.request import MAX_TOP_LOGPROBS, SamplingParams

from ..pictures import NamedPicture
from .effort import told_effort
from .picture_parts import Part, line
from .sampling import SamplingBody, most_tokens
from .structure import structure
from .tools import ToolWish, legacy_functions, openai_tools


class Message(msgspec.Struct, kw_only=True):
    """One message. ``content`` may be missing where ``tool_calls`` speak, or ``function_call``, their older form."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    function_call: dict[str, Any] | None = None
    reasoning_content: str | None = None


class Placed(Message, kw_only=True):
    """A message that another protocol spells in its own way: refusals name the place there, and those of its parts."""

    where: str
    parts: list[str] = []


class ChatBody(SamplingBody, kw_only=True):
    """The whole body. The last group is OpenAI's, accepted and without effect on the answer."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    functions: list[Any] | None = None
    function_call: str | dict[str, Any] | None = None
    modalities: list[str] | None = None
    audio: Any = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    reasoning_effort: str | None = None
    verbosity: str | None = None

    metadata: Any = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: Any = None
    prompt_cache_retention: str | None = None
    prediction: Any = None

    def sampling(self) -> SamplingParams:
        """Raises InvalidRequest for combinations that make no sense."""
        fields = self.sampling_fields()
        wanted = most_tokens("max_completion_tokens", self.max_completion_tokens)
        fields["max_tokens"] = self.max_tokens if wanted is None else wanted
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidRequest("top_logprobs", "needs logprobs to be true")
        if self.top_logprobs is not None and not 0 <= self.top_logprobs <= MAX_TOP_LOGPROBS:
            raise InvalidRequest("top_logprobs", f"must lie between 0 and {MAX_TOP_LOGPROBS}, got {self.top_logprobs}")
        if self.logprobs:
            fields["logprobs"] = self.top_logprobs or 0
        fields["structured_outputs"] = structure(self.response_format, self.structured_outputs)
        return SamplingParams(**fields)

    def variables(self) -> dict[str, Any]:
        """Further names for the chat template."""
        extra = dict(self.chat_template_kwargs or {})
        return extra if self.reasoning_effort is None else told_effort(self.reasoning_effort) | extra

    def tool_wish(self) -> ToolWish:
        if self.speaks_functions:
            return legacy_functions(self.functions or [], self.function_call)
        return openai_tools(self.tools, self.tool_choice, self.parallel_tool_calls)

    @property
    def speaks_functions(self) -> bool:
        """The request has ``functions``, which OpenAI had before ``tools``: the answer has ``function_call`` then."""
        return self.functions is not None or self.function_call is not None

    def refuse_unserved(self) -> None:
        """What would change the answer and cannot be honoured is refused, never ignored."""
        if self.speaks_functions and (self.tools or self.tool_choice is not None):
            raise InvalidRequest("functions", "is the older form of tools: give one of them")
        if self.audio is not None or any(kind != "text" for kind in self.modalities or ()):
            raise InvalidRequest("modalities", "only text is served")
        refuse_verbosity(self.verbosity, "verbosity")


def refuse_verbosity(verbosity: str | None, field: str) -> None:
    """Models here know no such wish."""
    if verbosity not in (None, "medium"):
        raise InvalidRequest(field, f"only medium is served, got {verbosity!r}: say in the prompt how long it may be")


TEMPLATE_ROLES = {"developer": "system", "function": "tool"}  # names that templates do not know


def template_messages(messages: list[Message], pictures: list[NamedPicture] | None = None) -> list[dict[str, Any]]:
    """Messages as chat templates expect them: plain text contents, roles by the names they know.

    ``pictures`` gets those of the contents, where a ``HOLDER`` stands for each; None: the model reads text only.
    """
    if not messages:
        raise InvalidRequest("messages", "must hold at least one message")
    return [_template_message(message, f"messages[{i}]", pictures) for i, message in enumerate(messages)]


def _template_message(message: Message, where: str, pictures: list[NamedPicture] | None) -> dict[str, Any]:
    content, places = message.content, list[str]()
    if isinstance(message, Placed):
        where, places = message.where, message.parts
    if isinstance(content, list):
        places = places or [f"{where}.content[{j}]" for j in range(len(content))]
        content = "\n".join(line(part, place, message.role, pictures) for part, place in zip(content, places))
    calls = _checked_calls(message, where)
    if content is None and not (message.role == "assistant" and calls):
        raise InvalidRequest(f"{where}.content", "is required")
    out: dict[str, Any] = {"role": TEMPLATE_ROLES.get(message.role, message.role), "content": content or ""}
    for name in ("name", "tool_call_id", "reasoning_content"):
        if (value := getattr(message, name)) is not None:
            out[name] = value
    if calls:
        out["tool_calls"] = [_template_call(call) for call in calls]
    return out


def _checked_calls(message: Message, where: str) -> list[dict[str, Any]]:
    """Past calls, also in their older form. Raises InvalidRequest where one names no function."""
    calls = message.tool_calls or []
    places = [f"{where}.tool_calls[{i}].function" for i in range(len(calls))]
    if not calls and message.function_call is not None:
        calls = [{"id": "call_0", "type": "function", "function": message.function_call}]
        places = [f"{where}.function_call"]
    for call, place in zip(calls, places):
        function = call.get("function")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise InvalidRequest(place, "must be an object with a name")
    return calls


def _template_call(call: dict[str, Any]) -> dict[str, Any]:
    """A past call as templates read it: its arguments as an object where they parse as one."""
    function = call["function"]
    if not isinstance(arguments := function.get("arguments"), str):
        return call
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError):
        return call
    return {**call, "function": {**function, "arguments": parsed}} if isinstance(parsed, dict) else call

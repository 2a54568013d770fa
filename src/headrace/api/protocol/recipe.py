"""RecipeCodec: DeepSeek's own rendering of V4.1 conversations and its own reading of answers (extra ``deepseek``).

What it renders comes with the places of its control tokens, so everything else is encoded as plain text. Answers are
fed to it as token ids, never as text, for the same reason. Sampling, stop strings and counts stay the engine's: of the
package only the conversation, the rendering and the parser are used.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from headrace.contract.errors import ConfigError, InvalidRequest
from headrace.contract.extras import how_to_get
from headrace.contract.request import SamplingParams

from ..text.answer_forms import Mark, MarkTable
from ..text.tokenizer import Tokenizer
from .answer import Reading
from .recipe_reading import RecipeReading
from .thought_count import ThoughtCount
from .tools import AUTO, ToolWish

NEEDED = ("Bos", "Eos", "User", "Assistant", "System", "ThinkingStart", "ThinkingEnd", "Dsml")
EFFORTS = {"minimal": "low", "low": "low", "medium": "high", "high": "high", "xhigh": "xhigh", "max": "max"}


def load_recipe() -> Any:
    """The package. Raises ConfigError where the extra is missing."""
    try:
        return import_module("deepseek_recipe")
    except ImportError as error:
        words = f"recipe needs deepseek-recipe ({error}): {how_to_get('deepseek')}"
        raise ConfigError("codec", words) from error


class RecipeCodec:
    """For models of the DeepSeek-V4.1 family. Raises ConfigError where the vocabulary lacks its control tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._recipe = load_recipe()
        self._tokenizer = tokenizer
        spelled = {name: getattr(self._recipe.SpecialToken, name).default_str() for name in NEEDED}
        ids = {name: tokenizer.added_id(spelling) for name, spelling in spelled.items()}
        if missing := [spelled[name] for name, index in ids.items() if index is None]:
            words = (
                "recipe is for DeepSeek-V4.1's own vocabulary (v41-mini has a small one of its own: use template); this"
                f" one lacks {', '.join(missing)}"
            )
            raise ConfigError("codec", words)
        self._ids = {name: index for name, index in ids.items() if index is not None}
        self._decoder = self._recipe.Tokenizer.from_str(tokenizer.as_json())

    def encode(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
        context: int | None = None,
        picture: str | None = None,
    ) -> list[int]:
        if picture is not None:
            raise InvalidRequest("messages", "pictures are not served with the recipe codec")
        if not add_generation_prompt:
            raise InvalidRequest("add_generation_prompt", "must be true: this codec always asks for an answer")
        conversation = self._conversation(messages, tools or [], variables or {})
        rendered = self._recipe.DeepseekV41Encoding().render_conversation(conversation)
        if context is not None:
            self._tokenizer.check_fits("messages", rendered.prompt, context)
        return self._tokenizer.with_bos(self._placed(rendered.prompt, rendered.special_ranges))

    def _placed(self, text: str, places: Sequence[tuple[int, int]]) -> list[int]:
        """Ids of ``text``; control tokens only in the places named."""
        ids, done = list[int](), 0
        for start, end in places:
            ids += self._tokenizer.encode(text[done:start], add_special=False, parse_special=False)
            index = self._tokenizer.added_id(text[start:end])
            if index is None:
                raise InvalidRequest("messages", f"the vocabulary lacks {text[start:end]!r}")
            ids.append(index)
            done = end
        return ids + self._tokenizer.encode(text[done:], add_special=False, parse_special=False)

    def _conversation(
        self, messages: Sequence[Mapping[str, Any]], tools: list[dict[str, Any]], variables: Mapping[str, Any]
    ) -> Any:
        thinks, effort = thinking(variables)
        recipe = self._recipe
        try:
            return recipe.Conversation(
                [self._message(message) for message in messages],
                thinking_mode=thinks,
                reasoning_effort=effort,
                tools=[recipe.ToolDefinition(**_definition(tool)) for tool in tools],
            )
        except (TypeError, ValueError, KeyError, OverflowError) as error:
            raise InvalidRequest("messages", f"cannot be rendered: {error}") from error

    def _message(self, message: Mapping[str, Any]) -> Any:
        recipe, content = self._recipe, message["content"]
        make: dict[str, Callable[[], Any]] = {
            "system": lambda: recipe.SystemMessage(content),
            "user": lambda: recipe.UserMessage(content),
            "tool": lambda: recipe.ToolMessage(content, message.get("tool_call_id")),
            "assistant": lambda: recipe.AssistantMessage(
                content, message.get("reasoning_content"), [self._call(call) for call in message.get("tool_calls", [])]
            ),
        }
        return make[message["role"]]()

    def _call(self, call: Mapping[str, Any]) -> Any:
        function = call["function"]
        arguments = function.get("arguments") or {}
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        return self._recipe.ToolCall(str(call.get("id", "")), str(function["name"]), text)

    def read(self, wish: ToolWish, ids: list[int], sampling: SamplingParams) -> tuple[Reading, SamplingParams]:
        marks = {self._ids["ThinkingStart"]: Mark.THINK, self._ids["ThinkingEnd"]: Mark.END_THINK}
        in_thought = next((marks[index] for index in reversed(ids) if index in marks), None) is Mark.THINK
        refuse(wish, in_thought, sampling)
        kept = {self._ids[name] for name in ("ThinkingStart", "ThinkingEnd", "Dsml")}
        hidden = self._tokenizer.special_ids - kept
        thoughts = ThoughtCount(self._tokenizer, MarkTable(marks), in_thought)
        made = (self._recipe, self._decoder, self._tokenizer, in_thought, wish.names, sampling, hidden, thoughts)
        return RecipeReading(*made), sampling


def refuse(wish: ToolWish, in_thought: bool, sampling: SamplingParams) -> None:
    """What would need a grammar of this family's calls and thoughts, which there is none of."""
    if wish.choice not in (AUTO, "none"):
        raise InvalidRequest("tool_choice", "with the recipe codec only auto and none are served")
    if any(function.strict for function in wish.functions):
        raise InvalidRequest("tools", "strict is not served with the recipe codec")
    if sampling.structured_outputs is not None and (in_thought or wish.names):
        words = "with the recipe codec a constraint needs an answer without thoughts and without tools"
        raise InvalidRequest(sampling.structured_outputs.field, words)


def thinking(variables: Mapping[str, Any]) -> tuple[bool, str | None]:
    """Whether the model is to think, and how hard: ``thinking`` or ``enable_thinking``, and ``reasoning_effort``."""
    thinks = variables.get("thinking", variables.get("enable_thinking", True))
    if not isinstance(thinks, bool):
        raise InvalidRequest("chat_template_kwargs.thinking", f"must be true or false, got {thinks!r}")
    effort = variables.get("reasoning_effort")
    if effort in (None, "none"):
        return thinks and effort is None, None
    if not isinstance(effort, str) or effort not in EFFORTS:
        raise InvalidRequest("reasoning_effort", f"must be none or one of {', '.join(EFFORTS)}, got {effort!r}")
    return thinks, EFFORTS[effort] if thinks else None


def _definition(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = tool["function"]
    return {name: function.get(name) for name in ("name", "description", "parameters")}

"""Codec: from a conversation to prompt ids, and from an answer's tokens to its parts. Two ways to do both.

Whatever the way, control tokens enter a prompt by position and count in an answer by position: text that spells one
stays text. A codec knows no HTTP and no engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from headrace.contract.errors import ConfigError
from headrace.contract.request import SamplingParams

from ..text.answer_forms import AnswerForm, ParserChoice, find_form, mark_table, opens_thought
from ..text.chat import encode_chat
from ..text.tokenizer import Tokenizer
from ..text.tool_prompt import with_tools
from .answer import Reading
from .answer_parser import AnswerPlan
from .thought_count import ThoughtCount
from .tools import ToolWish

CODECS = ("template", "recipe")


class Codec(Protocol):
    """One model's way to write conversations. Thread-safe; holds nothing of a request."""

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
        """Prompt ids. ``messages`` as ``template_messages`` makes them. Raises InvalidRequest; also for what is plainly
        too long for ``context`` tokens, if it is given. ``picture``: the control token that takes the place of every
        ``HOLDER``."""
        ...

    def read(self, wish: ToolWish, ids: list[int], sampling: SamplingParams) -> tuple[Reading, SamplingParams]:
        """How to read the answers to this prompt, and the sampling with the constraint that the tools ask for.

        Raises InvalidRequest for what cannot be honoured.
        """
        ...


class ChatTemplateCodec:
    """Any model with a chat template; ``form`` is how it writes thoughts and calls."""

    def __init__(self, tokenizer: Tokenizer, form: AnswerForm) -> None:
        self._tokenizer, self._form = tokenizer, form

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
        if not self._form.template_has_tools:
            messages, tools = with_tools(messages, tools), None
        return encode_chat(
            self._tokenizer,
            messages,
            tools=tools,
            variables=variables,
            add_generation_prompt=add_generation_prompt,
            context=context,
            picture=picture,
        )

    def read(self, wish: ToolWish, ids: list[int], sampling: SamplingParams) -> tuple[Reading, SamplingParams]:
        form = self._form
        in_thought, marks = opens_thought(form, self._tokenizer, ids), mark_table(form, self._tokenizer)
        formatted = sampling.structured_outputs
        wanted = wish.constraint(form, in_thought, formatted, marks)
        sampling = msgspec.structs.replace(sampling, structured_outputs=wanted)
        guaranteed = wanted is not None and wanted.structural_tag is not None
        thoughts = ThoughtCount(self._tokenizer, marks, in_thought) if form.thinks else None
        most = None if form.call is None else wish.most_calls(form.call)
        plan = AnswerPlan(
            form,
            marks,
            wish.names,
            guaranteed=guaranteed,
            demanded=wish.demanded,
            in_thought=in_thought,
            formatted=formatted is not None and formatted.structural_tag is None,
            thoughts=thoughts,
            most_calls=most,
        )
        return AnswerPlan() if plan.plain else plan, sampling


def make_codec(kind: str, tokenizer: Tokenizer, parsers: ParserChoice | None = None) -> Codec:
    """``kind``: one of CODECS. Raises ConfigError for another one, where an extra is missing, or where the model's
    vocabulary lacks what the codec writes."""
    if kind == "template":
        return ChatTemplateCodec(tokenizer, find_form(tokenizer.chat_template, parsers))
    if kind == "recipe":
        from .recipe import RecipeCodec

        return RecipeCodec(tokenizer)
    raise ConfigError("codec", f"must be one of {', '.join(CODECS)}, got {kind!r}")

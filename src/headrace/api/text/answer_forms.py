"""How a model family writes thoughts and tool calls: its marks, found from the chat template.

A mark that the vocabulary has as one token counts only as that token: the same letters in ordinary tokens are text.
Where the vocabulary has no such token the letters are all there is. Never parses an answer (``protocol/answer`` does).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from headrace.contract.errors import ConfigError

from .tokenizer import Tokenizer


class Mark(Enum):
    """A boundary inside an answer; the value is its spelling."""

    THINK = "<think>"
    END_THINK = "</think>"
    CALL = "<tool_call>"
    END_CALL = "</tool_call>"
    PYTHON = "<|python_tag|>"


@dataclass(frozen=True, slots=True)
class CallForm:
    """A call is ``begin``, ``{"name": NAME, KEY: ARGUMENTS}``, ``end``; several are joined by ``separator``.
    ``bare``: no mark is needed, an answer that starts with a brace is a call. ``repeats``: templates take an answer
    with several calls back; Llama 3's raise an error at two."""

    name: str
    key: str
    begin: str = ""
    end: str = ""
    separator: str = "\n"
    bare: bool = False
    repeats: bool = True


HERMES = CallForm("hermes", "arguments", "<tool_call>\n", "\n</tool_call>")
LLAMA3 = CallForm("llama3", "parameters", separator="; ", bare=True, repeats=False)
CALL_FORMS = {form.name: form for form in (HERMES, LLAMA3)}
NAMES_TOOLS = re.compile(r"\btools\b")


@dataclass(frozen=True, slots=True)
class ParserChoice:
    """``tool_parser``: auto, none, or a name of CALL_FORMS. ``reasoning_parser``: auto, none, think."""

    tool_parser: str = "auto"
    reasoning_parser: str = "auto"

    def check(self) -> None:
        """Raises ConfigError naming the field."""
        for name, known in (("tool_parser", ("auto", "none", *CALL_FORMS)), ("reasoning_parser", REASONING)):
            if getattr(self, name) not in known:
                raise ConfigError(name, f"must be one of {', '.join(known)}, got {getattr(self, name)!r}")


REASONING = ("auto", "none", "think")


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """What may stand in this model's answers. ``template_has_tools``: the template places tools and calls itself."""

    call: CallForm | None = None
    thinks: bool = False
    template_has_tools: bool = False

    @property
    def marks(self) -> tuple[Mark, ...]:
        calls = () if self.call is None else (Mark.PYTHON,) if self.call.bare else (Mark.CALL, Mark.END_CALL)
        return (*calls, *((Mark.THINK, Mark.END_THINK) if self.thinks else ()))


def find_form(template: str | None, choice: ParserChoice | None = None) -> AnswerForm:
    """The form that ``template`` speaks of. A template without tools gets the Hermes form, told in a system message."""
    choice = choice or ParserChoice()
    text = template or ""
    has_tools = NAMES_TOOLS.search(text) is not None
    call = CALL_FORMS.get(choice.tool_parser)
    if choice.tool_parser == "auto":
        call = _call_form(text, has_tools)
    thinks = choice.reasoning_parser == "think" or (choice.reasoning_parser == "auto" and Mark.END_THINK.value in text)
    return AnswerForm(call, thinks, has_tools)


def _call_form(text: str, has_tools: bool) -> CallForm | None:
    if not text:
        return None
    if not has_tools:
        return HERMES
    if Mark.CALL.value in text and "<function=" not in text:
        return HERMES
    return LLAMA3 if '"parameters"' in text and "<|start_header_id|>" in text else None


@dataclass(frozen=True, slots=True)
class MarkTable:
    """Marks that are tokens, by id; and those that are only text, by spelling."""

    ids: Mapping[int, Mark] = field(default_factory=dict)
    texts: Mapping[str, Mark] = field(default_factory=dict)

    @property
    def known(self) -> frozenset[Mark]:
        return frozenset((*self.ids.values(), *self.texts.values()))

    def id_of(self, mark: Mark) -> int | None:
        """The token that the mark is; None where it is only text."""
        return next((index for index, known in self.ids.items() if known is mark), None)


def mark_table(form: AnswerForm, tokenizer: Tokenizer) -> MarkTable:
    """The marks of ``form`` in this vocabulary."""
    ids = {index: mark for mark in form.marks if (index := tokenizer.added_id(mark.value)) is not None}
    return MarkTable(ids, {mark.value: mark for mark in form.marks if mark not in ids.values()})


def opens_thought(form: AnswerForm, tokenizer: Tokenizer, prompt: list[int]) -> bool:
    """Whether the template has already begun a thought that the answer goes on with."""
    if not form.thinks:
        return False
    begin, end = (tokenizer.added_id(mark.value) for mark in (Mark.THINK, Mark.END_THINK))
    if begin is not None:
        last = next((index for index in reversed(prompt) if index in (begin, end)), None)
        return last == begin
    return tokenizer.decode(prompt[-8:], skip_special=False).rstrip().endswith(Mark.THINK.value)

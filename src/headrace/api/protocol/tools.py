"""Tools as three protocols spell them, and what they ask of the model: a prompt with tools in it and, where a call is
demanded, a grammar. Checked before any work; never calls anything."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.contract.errors import InvalidRequest
from headrace.contract.near import check_fields
from headrace.contract.request import StructuredOutputs, check_schema

from ..text.answer_forms import AnswerForm, CallForm, Mark, MarkTable
from .decode import check_depth

MAX_TOOLS = 256
NAME = re.compile(r"[a-zA-Z0-9_-]+")
MAX_NAME_CHARS = 64  # OpenAI's bound
LONGEST_NAME = 128  # Anthropic's
LABELS = (  # what others' APIs know beside a declaration, without effect here
    "type",
    "cache_control",
    "eager_input_streaming",
    "defer_loading",
    "allowed_callers",
    "input_examples",
    "output_schema",
)
AUTO, NONE, REQUIRED = "auto", "none", "required"
ANY_OBJECT: dict[str, Any] = {"type": "object", "additionalProperties": True}


@dataclass(frozen=True, slots=True)
class Function:
    """``parameters``: a JSON schema. ``strict``: arguments must follow it even where no call is demanded."""

    name: str
    description: str | None = None
    parameters: Any = None
    strict: bool = False

    def for_template(self) -> dict[str, Any]:
        """As chat templates know it."""
        function: dict[str, Any] = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        function["parameters"] = {"type": "object", "properties": {}} if self.parameters is None else self.parameters
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class ToolWish:
    """``choice``: auto, none, required, or ``only`` names the one function that must be called."""

    functions: tuple[Function, ...] = ()
    choice: str = AUTO
    only: str | None = None
    parallel: bool = True
    field: str = field(default="tools")

    @property
    def demanded(self) -> bool:
        return self.choice == REQUIRED

    @property
    def names(self) -> frozenset[str]:
        """What may be called."""
        return frozenset() if self.choice == NONE else frozenset(function.name for function in self._offered)

    @property
    def _offered(self) -> tuple[Function, ...]:
        return tuple(f for f in self.functions if self.only in (None, f.name))

    def for_template(self) -> list[dict[str, Any]] | None:
        return [function.for_template() for function in self.functions] or None

    def most_calls(self, form: CallForm) -> int | None:
        """How many calls an answer may hold; None: as many as it likes."""
        return None if self.parallel and form.repeats else 1

    def constraint(
        self, form: AnswerForm, in_thought: bool, formatted: StructuredOutputs | None, marks: MarkTable
    ) -> StructuredOutputs | None:
        """What the answer must look like: calls where they are demanded, calls or ``formatted`` where both are offered,
        ``formatted`` after a thought. ``marks`` that are tokens bound these as tokens, whatever letters say. Raises
        InvalidRequest where the model's form is unknown."""
        if formatted is not None:
            formatted.check()
        if not self.names:
            return _after_thought(formatted, form, in_thought, marks) if in_thought else formatted
        if form.call is None:
            raise InvalidRequest(self.field, "how this model writes calls is not known: start with --tool-parser")
        if self.demanded and formatted is not None:
            raise InvalidRequest(formatted.field, f"contradicts a demanded call ({self.field})")
        calls = self._calls(form.call, marks)
        if formatted is not None:
            calls = {"type": "or", "elements": [_as_format(formatted), calls]}
        elif not self.demanded:
            if not any(function.strict for function in self._offered):
                return None
            calls = self._strict(form.call, marks)
        return _tag(_thinking(calls, form, in_thought, marks), self.field)

    def _calls(self, form: CallForm, marks: MarkTable) -> dict[str, Any]:
        """One call, or one and more."""
        one = {"type": "or", "elements": [_call(function, form, marks) for function in self._offered]}
        if self.only is not None or self.most_calls(form) == 1:
            return one
        return _sequence(one, {"type": "star", "content": _sequence(_literal(form.separator), one)})

    def _strict(self, form: CallForm, marks: MarkTable) -> dict[str, Any]:
        """Free text; but what begins as a call is one. No thought begins within: what is in one is no call."""
        if form.bare:
            text = {"type": "any_text", "excludes": sorted(m.value for m in marks.known & {Mark.PYTHON, Mark.THINK})}
            free = _sequence({"type": "regex", "pattern": "[^{< \\t\\n]|<[^|]"}, text)
            return {"type": "or", "elements": [free, self._calls(form, marks)]}
        tags = [_call(function, form, marks) for function in self._offered]
        told = {"tags": tags, "stop_after_first": self.most_calls(form) == 1}
        call, think = marks.id_of(Mark.CALL), marks.id_of(Mark.THINK)
        if call is None:
            never = [Mark.THINK.value] if Mark.THINK in marks.known else []
            return {"type": "triggered_tags", "triggers": [Mark.CALL.value], "excludes": never, **told}
        none = [] if think is None else [think]
        return {"type": "token_triggered_tags", "trigger_tokens": [call], "exclude_tokens": none, **told}


def _literal(text: str) -> dict[str, Any]:
    return {"type": "const_string", "value": text}


def _sequence(*elements: dict[str, Any]) -> dict[str, Any]:
    return {"type": "sequence", "elements": list(elements)}


def _edge(mark: Mark, marks: MarkTable) -> str | dict[str, Any]:
    """The begin or end of a tag."""
    index = marks.id_of(mark)
    return mark.value if index is None else {"type": "token", "token": index}


def _call(function: Function, form: CallForm, marks: MarkTable) -> dict[str, Any]:
    """A tag, or without marks what would be in it."""
    before, after = form.begin.removeprefix(Mark.CALL.value), form.end.removesuffix(Mark.END_CALL.value)
    begin = f"{before}{{{json.dumps('name')}: {json.dumps(function.name)}, {json.dumps(form.key)}: "
    schema = ANY_OBJECT if function.parameters is None else function.parameters
    body = _sequence(_literal(begin), _json(schema), _literal("}" + after))
    if form.bare:
        return body
    return {"type": "tag", "begin": _edge(Mark.CALL, marks), "content": body, "end": _edge(Mark.END_CALL, marks)}


def _json(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": schema, "max_whitespace_cnt": 20}


def _as_format(wanted: StructuredOutputs) -> dict[str, Any]:
    """The same constraint as a part of a structural tag."""
    if wanted.regex is not None:
        return {"type": "regex", "pattern": wanted.regex}
    if wanted.grammar is not None:
        return {"type": "grammar", "grammar": wanted.grammar}
    if wanted.choice is not None:
        return {"type": "or", "elements": [_literal(text) for text in wanted.choice]}
    if wanted.structural_tag is not None:
        inner: dict[str, Any] = wanted.structural_tag.get("format", {})
        return inner
    return _json(ANY_OBJECT if wanted.json is None else _schema(wanted))


def _schema(wanted: StructuredOutputs) -> Any:
    if not isinstance(wanted.json, str):
        return wanted.json
    try:
        check_depth(wanted.json.encode("utf-8", "replace"))
        return json.loads(wanted.json)
    except (ValueError, RecursionError, InvalidRequest) as error:
        raise InvalidRequest(wanted.field, f"json is no JSON schema: {error}") from error


def _after_thought(
    formatted: StructuredOutputs | None, form: AnswerForm, in_thought: bool, marks: MarkTable
) -> StructuredOutputs | None:
    if formatted is None:
        return None
    return _tag(_thinking(_as_format(formatted), form, in_thought, marks), formatted.field)


def _thinking(content: dict[str, Any], form: AnswerForm, in_thought: bool, marks: MarkTable) -> dict[str, Any]:
    """``content`` after the thought that the prompt has begun, or that the model may begin."""
    if not form.thinks:
        return content
    end = marks.id_of(Mark.END_THINK)
    anything = {"type": "any_text"} if end is None else {"type": "any_tokens", "exclude_tokens": [end]}
    begin = "" if in_thought else _edge(Mark.THINK, marks)
    thought = {"type": "tag", "begin": begin, "content": anything, "end": _edge(Mark.END_THINK, marks)}
    thought = _sequence(thought, {"type": "regex", "pattern": "[\\n]{0,2}"})
    return _sequence(thought if in_thought else {"type": "optional", "content": thought}, content)


def _tag(content: dict[str, Any], field: str) -> StructuredOutputs:
    tag = {"type": "structural_tag", "format": content}
    return StructuredOutputs(structural_tag=tag, field=field, lenient=True)  # its schemas were looked at, one by one


def wish(functions: Sequence[Function], choice: str, only: str | None, parallel: bool | None) -> ToolWish:
    """Checks what the protocols have in common. Raises InvalidRequest naming ``tools`` or ``tool_choice``."""
    if len(functions) > MAX_TOOLS:
        raise InvalidRequest("tools", f"at most {MAX_TOOLS}, got {len(functions)}")
    names = [function.name for function in functions]
    if len(set(names)) < len(names):
        raise InvalidRequest("tools", f"the name {next(n for n in names if names.count(n) > 1)!r} is there twice")
    if not functions and (choice == REQUIRED or only is not None):
        raise InvalidRequest("tool_choice", "demands a call, but there are no tools")
    if only is not None and only not in names:
        raise InvalidRequest("tool_choice", f"names {only!r}, which is not among the tools")
    return ToolWish(tuple(functions), choice, only, parallel is not False)


def function_of(value: Any, where: str, schema_key: str = "parameters", longest_name: int = MAX_NAME_CHARS) -> Function:
    """A function's declaration. Raises InvalidRequest naming the place."""
    if not isinstance(value, dict):
        raise InvalidRequest(where, "must be an object with a name")
    check_fields(where, value, ("name", "description", schema_key, "strict", *LABELS))
    name = value.get("name")
    if not isinstance(name, str) or not NAME.fullmatch(name) or len(name) > longest_name:
        words = f"must be 1 to {longest_name} letters, digits, underscores and dashes (a-z, A-Z, 0-9, _, -)"
        raise InvalidRequest(f"{where}.name", words)
    description, schema = value.get("description"), value.get(schema_key)
    if not isinstance(description, str | None):
        raise InvalidRequest(f"{where}.description", "must be a text")
    if not isinstance(schema, dict | None):
        raise InvalidRequest(f"{where}.{schema_key}", "must be a JSON schema")
    strict = value.get("strict") is True
    if strict:
        check_schema(schema, f"{where}.{schema_key}")
    return Function(name, description, schema or None, strict)


def openai_tools(
    tools: list[dict[str, Any]] | None, choice: Any, parallel: bool | None, *, nested: bool = True
) -> ToolWish:
    """Chat's tools, with the function nested; or Responses', where it is flat."""
    functions = []
    for i, tool in enumerate(tools or []):
        if tool.get("type") != "function":
            raise InvalidRequest(f"tools[{i}].type", f"only function is served, got {tool.get('type')!r}")
        if nested and isinstance(tool.get("function"), dict):
            check_fields(f"tools[{i}]", tool, ("function", *LABELS))
        where = f"tools[{i}].function" if nested else f"tools[{i}]"
        functions.append(function_of(tool.get("function") if nested else tool, where))
    if choice is None or isinstance(choice, str):
        if choice not in (None, AUTO, NONE, REQUIRED):
            raise InvalidRequest("tool_choice", f"must be auto, none, required or a function, got {choice!r}")
        return wish(functions, choice or AUTO, None, parallel)
    named = (choice.get("function") if nested else choice) if isinstance(choice, dict) else None
    if not isinstance(named, dict) or choice.get("type") != "function" or not isinstance(named.get("name"), str):
        raise InvalidRequest("tool_choice", "an object must be of type function and hold a name")
    check_fields("tool_choice", choice, ("type", "function" if nested else "name"))
    check_fields("tool_choice.function" if nested else "tool_choice", named, ("name", "type"))
    return wish(functions, REQUIRED, named["name"], parallel)


def legacy_functions(functions: list[Any], choice: Any) -> ToolWish:
    """Chat's ``functions`` and ``function_call``: at most one call, and no ``required``."""
    offered = [function_of(one, f"functions[{i}]") for i, one in enumerate(functions)]
    if choice in (None, AUTO, NONE):
        return wish(offered, choice or AUTO, None, parallel=False)
    only = choice.get("name") if isinstance(choice, dict) else None
    if not isinstance(only, str):
        raise InvalidRequest("function_call", f"must be auto, none or an object with a name, got {choice!r}")
    if only not in [function.name for function in offered]:
        raise InvalidRequest("function_call", f"names {only!r}, which is not among the functions")
    return wish(offered, REQUIRED, only, parallel=False)


def anthropic_tools(tools: list[dict[str, Any]] | None, choice: dict[str, Any] | None) -> ToolWish:
    """Messages' tools and ``tool_choice``."""
    functions = []
    for i, tool in enumerate(tools or []):
        if tool.get("type") not in (None, "custom"):
            raise InvalidRequest(f"tools[{i}].type", f"only custom tools are served, got {tool['type']!r}")
        functions.append(function_of(tool, f"tools[{i}]", "input_schema", LONGEST_NAME))
    choice = choice or {"type": AUTO}
    kinds = {"auto": AUTO, "none": NONE, "any": REQUIRED, "tool": REQUIRED}
    kind = choice.get("type")
    if not isinstance(kind, str) or kind not in kinds:
        raise InvalidRequest("tool_choice.type", f"must be one of {', '.join(kinds)}, got {kind!r}")
    check_fields("tool_choice", choice, ("type", "name", "disable_parallel_tool_use"))
    only = choice.get("name") if kind == "tool" else None
    if kind == "tool" and not isinstance(only, str):
        raise InvalidRequest("tool_choice.name", "must be a text")
    return wish(functions, kinds[kind], only, not choice.get("disable_parallel_tool_use"))

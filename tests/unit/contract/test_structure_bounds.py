"""Constraints that would end the process that compiles them, or take its memory, are refused before."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.contract.errors import InvalidRequest
from headrace.contract.request import StructuredOutputs
from headrace.contract.structure_bounds import MAX_GRAMMAR, MAX_LEVELS, MAX_NODES, MAX_PATTERN, MAX_REFS, MAX_TEXT

LONG = "a?" * (MAX_PATTERN // 2)
DEEP = "(" * (MAX_PATTERN // 2) + ")" * (MAX_PATTERN // 2)


def tag(inner: dict[str, Any]) -> dict[str, Any]:
    return {"type": "structural_tag", "format": {"type": "sequence", "elements": [inner]}}


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize("pattern", [LONG, DEEP])
def test_the_length_of_patterns_is_bounded_wherever_they_stand(pattern: str) -> None:
    for more in ("", "a"):
        text = pattern + more
        for fields in (
            {"regex": text},
            {"json": {"type": "string", "pattern": text}},
            {"json": {"$defs": {"a": {"anyOf": [{"type": "string", "pattern": text}]}}, "$ref": "#/$defs/a"}},
            {"json": {"type": "object", "patternProperties": {text: {"type": "null"}}}},
            {"json": f'{{"type": "string", "pattern": "{text}"}}'},
            {"structural_tag": tag({"type": "regex", "pattern": text})},
            {
                "structural_tag": tag(
                    {"type": "json_schema", "json_schema": {"items": {"type": "string", "pattern": text}}}
                )
            },
        ):
            refused(fields, bool(more), "pattern|regex")


def test_the_length_of_grammars_is_bounded() -> None:
    text = 'root ::= "a"'.ljust(MAX_GRAMMAR)
    for more in ("", "a"):
        refused({"grammar": text + more}, bool(more), "grammar")
        refused({"structural_tag": tag({"type": "grammar", "grammar": text + more})}, bool(more), "grammar")


def test_levels_and_references_are_bounded() -> None:
    for levels in (MAX_LEVELS // 2, MAX_LEVELS, 200_000):
        refused({"json": nested(levels)}, levels >= MAX_LEVELS, "deeper")
    for count in (MAX_REFS, MAX_REFS + 1):
        chain = {"$defs": {str(i): {"$ref": f"#/$defs/{i + 1}"} for i in range(count)}}
        refused({"json": chain}, count > MAX_REFS, "references")
    for count in (MAX_NODES - 2, MAX_NODES):
        refused({"json": {"anyOf": [{} for _ in range(count)]}}, count == MAX_NODES, "objects and lists")
    refused({"json": "[" * 50_000}, True, "deeper")
    refused({"json": "{}" * MAX_NODES + "[]"}, True, "objects and lists")
    refused({"json": "no JSON"}, False, "")  # what it is the compiler says


def test_the_text_of_a_whole_constraint_is_bounded() -> None:
    half = "x" * (MAX_TEXT // 2 - 100)
    for more, expected in (("", False), ("y" * 201, True)):
        refused({"choice": [half, half + more]}, expected, "characters")
        refused({"json": {"enum": [half, half + more]}}, expected, "characters")
        refused({"json": {"type": "object", "properties": {half: {"const": half + more}}}}, expected, "characters")
        refused({"json": f'{{"enum": ["{half}", "{half + more}"]}}'}, expected, "characters")
        refused({"structural_tag": tag({"type": "const_string", "value": half + half + more})}, expected, "characters")


def refused(fields: dict[str, Any], expected: bool, words: str) -> None:
    wanted = StructuredOutputs(**fields, field="response_format", lenient=True)  # these say what bounds are, not gaps
    if not expected:
        wanted.check()
        return
    with pytest.raises(InvalidRequest, match=words) as told:
        wanted.check()
    assert told.value.field == "response_format"

"""What a grammar would leave out of a schema in silence is refused: held against the compiler that is used."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from extras import needs_compiler

from headrace.contract.errors import InvalidRequest
from headrace.contract.json_schema import first_gap
from headrace.contract.request import StructuredOutputs
from headrace.grammar.backend import Backend, Vocabulary

END = 256
INT: dict[str, Any] = {"type": "integer"}
TEXT: dict[str, Any] = {"type": "string"}
A: dict[str, Any] = {"type": "object", "properties": {"a": INT}, "required": ["a"]}
B: dict[str, Any] = {"type": "object", "properties": {"b": INT}, "required": ["b"]}


def thing(**keys: Any) -> dict[str, Any]:
    return {"type": "object", **keys}


HELD: list[tuple[dict[str, Any], str, str]] = [
    ({"type": "string", "minLength": 2, "maxLength": 3}, '"ab"', '"a"'),
    ({"type": "string", "pattern": "^a+?$"}, '"aa"', '"b"'),
    ({"type": "string", "format": "date"}, '"2020-01-01"', '"x"'),
    ({"type": "integer", "minimum": 5}, "5", "4"),
    ({"type": "number", "exclusiveMaximum": 5}, "4.5", "5"),
    ({"type": "integer", "multipleOf": 7}, "14", "15"),
    ({"enum": ["a", 1, None]}, '"a"', '"b"'),
    ({"type": "string", "enum": ["a", "b"]}, '"a"', '"c"'),
    ({"type": ["string", "null"], "enum": ["a", None]}, "null", "1"),
    ({"type": ["integer", "string"], "minimum": 3, "minLength": 2}, "3", '"a"'),
    ({"type": "array", "items": INT, "minItems": 1, "maxItems": 2, "uniqueItems": False}, "[1]", "[]"),
    ({"type": "array", "prefixItems": [TEXT], "items": False}, '["a"]', '["a", 1]'),
    (thing(properties={"a": INT, "b": INT}, required=["b"]), '{"b": 1}', '{"a": 1}'),
    (thing(additionalProperties=INT, minProperties=1, maxProperties=1), '{"a": 1}', "{}"),
    (thing(additionalProperties=INT, propertyNames={"pattern": "^a$"}), '{"a": 1}', '{"b": 1}'),
    (thing(patternProperties={"^a$": INT}), '{"a": 1}', '{"a": "x"}'),
    ({"properties": {"a": INT}, "required": ["a"]}, '{"a": 1}', '{"a": "x"}'),
    ({"anyOf": [INT, TEXT], "title": "either"}, "1", "null"),
    ({"type": "object", "anyOf": [A, B]}, '{"b": 1}', "1"),
    ({"type": "string", "oneOf": [{"const": "a"}, {"const": "b"}]}, '"a"', '"c"'),
    ({"allOf": [{"$ref": "#/$defs/x"}], "description": "one", "$defs": {"x": INT}}, "1", '"a"'),
    ({"$ref": "#/definitions/x", "default": 3, "definitions": {"x": INT}}, "1", '"a"'),
]

GAPS: list[tuple[dict[str, Any], str]] = [
    ({"type": "array", "items": INT, "uniqueItems": True}, "[1, 1]"),
    ({"type": "array", "items": INT, "contains": {"const": 3}}, "[1]"),
    (thing(properties={"a": INT, "b": INT}, dependentRequired={"a": ["b"]}), '{"a": 1}'),
    (thing(properties={"a": INT, "b": INT}, dependentSchemas={"a": {"required": ["b"]}}), '{"a": 1}'),
    (thing(properties={"a": INT, "b": INT}, dependencies={"a": ["b"]}), '{"a": 1}'),
    ({"not": INT}, "1"),
    ({"type": "integer", "not": {"const": 1}}, "1"),
    ({"type": "integer", "if": {"minimum": 3}, "then": {"maximum": 5}}, "9"),
    ({"allOf": [INT, {"type": "integer", "minimum": 3}]}, "1"),
    ({**A, "allOf": [B]}, '{"b": 1}'),
    ({**A, "anyOf": [B]}, '{"b": 1}'),
    ({"type": "object", "anyOf": [INT, thing()]}, "1"),
    ({"type": "integer", "allOf": [{"$ref": "#/$defs/x"}], "$defs": {"x": TEXT}}, '"a"'),
    ({"$ref": "#/$defs/x", "minimum": 3, "$defs": {"x": INT}}, "1"),
    ({"$ref": "http://schemas.invalid/x"}, "1"),
    ({"$ref": "#name", "$defs": {"x": {"$anchor": "name", **INT}}}, '"a"'),
    ({"$dynamicRef": "#name", "$defs": {"x": {"$dynamicAnchor": "name", **INT}}}, '"a"'),
    ({"type": "string", "enum": ["a", 1]}, "1"),
    ({"type": ["string", "null"], "enum": ["a", None, 3]}, "3"),
    ({"type": "string", "const": 1}, "1"),
    ({"enum": ["a", "abc"], "minLength": 2}, '"a"'),
    ({"minLength": 3}, '"a"'),
    ({"minimum": 3}, "1"),
    ({"minItems": 1}, "[]"),
    ({"minProperties": 1}, "{}"),
    ({"pattern": "^a$"}, '"b"'),
    ({"propertyNames": {"pattern": "^a$"}}, '{"b": 1}'),
    ({"patternProperties": {"^a$": INT}}, '{"a": "x"}'),
    ({"required": ["a"]}, '{"b": 1}'),
    (thing(properties={"a": INT}, required=["z"]), '{"a": 1}'),
    (thing(required=["z"], additionalProperties=INT), '{"a": 1}'),
    (
        thing(properties={"x": TEXT}, patternProperties={"^a$": INT}, additionalProperties=True),
        '{"x": "s", "a": "y"}',
    ),
    ({"type": "string", "pattern": "^a+$", "minLength": 3}, '"a"'),
    ({"type": "string", "format": "date", "pattern": "^2.*$"}, '"1999-01-01"'),
    ({"type": "string", "pattern": "^(?!b)[ab]$"}, '"b"'),
    (thing(propertyNames={"pattern": "^(?!b).$"}), '{"b": 1}'),
    ({"type": "number", "multipleOf": 0.5}, "1.3"),
    ({"type": "integer", "multipleOf": 5, "minimum": 10}, "11"),
]


@pytest.fixture(scope="module")
def backend() -> Backend:
    return Backend(Vocabulary([*(bytes([i]) for i in range(END)), b""], (END,)))


def allows(backend: Backend, schema: dict[str, Any], text: str) -> bool:
    matcher = backend.matcher(backend.compile(StructuredOutputs(json=schema)))
    return all(matcher.accept(token) for token in [*text.encode(), END])


@needs_compiler
@pytest.mark.parametrize(("schema", "good", "bad"), HELD, ids=str)
def test_what_answers_are_held_to_is_taken(backend: Backend, schema: dict[str, Any], good: str, bad: str) -> None:
    assert first_gap(schema) is None
    assert allows(backend, schema, good)
    assert not allows(backend, schema, bad)


@needs_compiler
@pytest.mark.parametrize(("schema", "bad"), GAPS, ids=str)
def test_what_a_grammar_would_leave_out_is_refused(backend: Backend, schema: dict[str, Any], bad: str) -> None:
    assert allows(backend, schema, bad)  # were it not so, the schema could be taken
    with pytest.raises(InvalidRequest, match="structured_outputs: schema"):
        StructuredOutputs(json=schema).check()
    nested = thing(properties={"deep": {"type": "array", "items": {"anyOf": [schema, INT]}}})
    gap = first_gap(nested)
    assert gap is not None
    assert gap[0].startswith(".properties.deep.items.anyOf[0]")


def test_schemas_are_looked_at_wherever_they_stand_unless_the_wish_is_lenient() -> None:
    schema = {"type": "array", "items": INT, "uniqueItems": True}
    part = {"type": "json_schema", "json_schema": schema}
    tag = {"type": "structural_tag", "format": {"type": "or", "elements": [part]}}
    for given in ({"json": schema}, {"json": json.dumps(schema)}, {"structural_tag": tag}):
        with pytest.raises(InvalidRequest, match="uniqueItems"):
            StructuredOutputs(**given).check()
        StructuredOutputs(**given, lenient=True).check()
    with pytest.raises(InvalidRequest, match="regex: no answer can be held to a pattern that looks ahead"):
        StructuredOutputs(regex="(?=a).").check()


def test_no_schema_at_all_is_for_the_compiler_to_refuse() -> None:
    for odd in (None, 3, [], {"properties": 3, "anyOf": 4, "required": "x", "enum": 5, "type": {}}, {"$ref": 7}):
        first_gap(odd)


def test_a_long_name_is_not_repeated_for_all_that_is_below_it() -> None:
    inner: dict[str, Any] = {f"p{i}": {"type": "integer"} for i in range(500)}
    schema = {"type": "object", "properties": {"n" * (1 << 17): {"type": "object", "properties": inner}}}
    tracemalloc.start()
    try:
        assert first_gap(schema) is None
        assert tracemalloc.get_traced_memory()[1] < 1 << 21  # repeated it would be thirty times as much
    finally:
        tracemalloc.stop()
    inner["p7"] = {"not": {}}
    assert first_gap(schema) == (f".properties.{'n' * (1 << 17)}.properties.p7", "no answer can be held to not")

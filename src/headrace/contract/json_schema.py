"""JSON schemas that an answer can be held to, and what of others a grammar would leave out in silence.

A grammar sees a text from left to right. It cannot say that items differ, that a part is not of some kind, or that two
schemas hold at once; compilers leave such keywords out, and the answer then only seems to satisfy its schema. This file
knows no compiler: a test holds its rules against the one that is used. Remarks (``title``, ``format`` of an unknown
kind, ...) ask for nothing. ``oneOf`` counts as ``anyOf``: that exactly one holds is for the schema to see to.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

NEVER = ("contains", "dependentRequired", "dependentSchemas", "dependencies", "not", "$dynamicRef", "$recursiveRef")
OBJECT = {"properties", "additionalProperties", "patternProperties", "propertyNames", "required"}
OBJECT |= {"minProperties", "maxProperties", "unevaluatedProperties"}
ARRAY = {"items", "prefixItems", "unevaluatedItems", "minItems", "maxItems"}
TEXT = {"minLength", "maxLength", "pattern"}
BOUNDS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
OF_A_TYPE = OBJECT | ARRAY | TEXT | BOUNDS | {"multipleOf"}
TELLS_TYPE = {"properties", "additionalProperties", "unevaluatedProperties", "items", "prefixItems", "unevaluatedItems"}
ALONE = ("$ref", "const", "enum", "anyOf", "oneOf", "allOf")  # in this order a compiler looks for them
SUBSCHEMAS = ("items", "additionalProperties", "unevaluatedProperties", "unevaluatedItems")
MAPS = ("properties", "patternProperties", "$defs", "definitions")
LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
LOOKAROUND = re.compile(r"(?<!\\)(?:\\\\)*\(\?<?[=!]")
NAMES = {str: "string", bool: "boolean", type(None): "null", dict: "object", list: "array"}

Gap = tuple[str, str]  # where in the schema ("" is the whole), and what is wrong there
Way = tuple[Any, str]  # the way to what holds it (None: the whole), and the step from there


def first_gap(schema: Any) -> Gap | None:
    """Where an answer could not be held to ``schema``; None where it can, or where no schema is to be seen."""
    pending: list[tuple[Way | None, Any]] = [(None, schema)]
    while pending:
        way, node = pending.pop()
        if not isinstance(node, dict):
            continue
        if (words := _gap_of(node)) is not None:
            return _place(way), words
        pending += reversed([((way, step), inner) for step, inner in _below(node)])
    return None


def _place(way: Way | None) -> str:
    """Spelled only where it is told: a long name would stand in the places of all that is below it."""
    steps = list[str]()
    while way is not None:
        way, step = way
        steps.append(step)
    return "".join(reversed(steps))


def _below(node: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key in SUBSCHEMAS:
        if key in node:
            yield f".{key}", node[key]
    if isinstance(names := node.get("propertyNames"), dict):
        yield ".propertyNames", {"type": "string", **names}
    for key in MAPS:
        if isinstance(inner := node.get(key), dict):
            yield from ((f".{key}.{name}", one) for name, one in inner.items())
    for key in LISTS:
        if isinstance(inner := node.get(key), list):
            yield from ((f".{key}[{i}]", one) for i, one in enumerate(inner))


def _gap_of(node: dict[str, Any]) -> str | None:
    for key in NEVER:
        if key in node:
            return f"no answer can be held to {key}"
    if node.get("uniqueItems") is True or ("if" in node and ("then" in node or "else" in node)):
        return f"no answer can be held to {'if' if 'if' in node else 'uniqueItems'}"
    alone = next((key for key in ALONE if key in node), None)
    return _gap_beside(node, alone) if alone is not None else _gap_of_type(node)


def _gap_beside(node: dict[str, Any], alone: str) -> str | None:
    """``alone`` is looked at and what stands beside it is not, but for a type that it implies."""
    if alone == "$ref" and not re.match(r"#(/|$)", str(node["$ref"])):
        return f"$ref must point into the schema (#/...), got {str(node['$ref'])[:100]!r}"
    if alone == "allOf" and isinstance(node["allOf"], list) and len(node["allOf"]) > 1:
        return "no answer can be held to several schemas at once (allOf): write them as one"
    beside = sorted(key for key in node if key in OF_A_TYPE or (key in ALONE and key != alone))
    if "type" in node and not _implied(node, alone):
        beside.append("type")
    return None if not beside else f"no answer can be held to {beside[0]} beside {alone}: write it into what that names"


def _implied(node: dict[str, Any], alone: str) -> bool:
    """Whether what ``alone`` allows is of the node's type anyway."""
    types = _types(node)
    if alone in ("const", "enum"):
        values = [node["const"]] if alone == "const" else node["enum"]
        return isinstance(values, list) and all(_is_one_of(value, types) for value in values)
    branches = node[alone] if isinstance(node[alone], list) else []
    return bool(branches) and all(isinstance(one, dict) and _stays_within(one, types) for one in branches)


def _stays_within(branch: dict[str, Any], types: set[str]) -> bool:
    if "type" in branch:
        return _types(branch) <= types
    return any(key in branch for key in ("const", "enum")) and _implied(
        {**branch, "type": sorted(types)}, _first(branch)
    )


def _first(branch: dict[str, Any]) -> str:
    return "const" if "const" in branch else "enum"


def _types(node: dict[str, Any]) -> set[str]:
    given = node.get("type")
    return set(map(str, given)) if isinstance(given, list) else {str(given)}


def _is_one_of(value: Any, types: set[str]) -> bool:
    if isinstance(value, int | float) and not isinstance(value, bool):
        whole = isinstance(value, int) or value.is_integer()
        return "number" in types or (whole and "integer" in types)
    return NAMES.get(type(value)) in types


def _gap_of_type(node: dict[str, Any]) -> str | None:
    asked = OF_A_TYPE & node.keys()
    if "type" not in node and asked and not TELLS_TYPE & asked:
        return f"{min(asked)} needs a type beside it"
    properties = node.get("properties")
    described = properties if isinstance(properties, dict) else {}
    required = node.get("required")
    for name in required if isinstance(required, list) else ():
        if isinstance(name, str) and name not in described:
            return f"requires {name[:100]!r}, which is not among its properties"
    if "patternProperties" in node and node.get("additionalProperties", False) is not False:
        return "no answer can be held to patternProperties beside additionalProperties"
    return _gap_of_text(node) or _gap_of_number(node)


def _gap_of_text(node: dict[str, Any]) -> str | None:
    given = [key for key in ("format", "pattern", "minLength", "maxLength") if key in node]
    if len(given) > 1 and given != ["minLength", "maxLength"]:
        return f"no answer can be held to {given[1]} beside {given[0]}"
    return pattern_gap(node.get("pattern"))


def pattern_gap(pattern: Any) -> str | None:
    """What a grammar would leave out of a regular expression."""
    if isinstance(pattern, str) and LOOKAROUND.search(pattern):
        return "no answer can be held to a pattern that looks ahead or behind"
    return None


def _gap_of_number(node: dict[str, Any]) -> str | None:
    if "multipleOf" not in node:
        return None
    if "number" in _types(node) or "type" not in node:
        return "no answer can be held to multipleOf, but for integers"
    bounds = sorted(BOUNDS & node.keys())
    return f"no answer can be held to {bounds[0]} beside multipleOf" if bounds else None

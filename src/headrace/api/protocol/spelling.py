"""For a field or a value that a body's schema does not have: what was meant, perhaps. Words only, nothing is mended."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from msgspec import inspect

STEPS = re.compile(r"\[[^\]]*\]|\.?([^.\[\]]+)")  # an item of a list or a map, or a field
ALIKE = (  # what the protocols call the same thing
    ("prompt", "messages", "input", "text"),
    ("stop", "stop_sequences"),
    ("max_tokens", "max_output_tokens", "max_completion_tokens"),
    ("response_format", "output_config"),
)


def meant_field(schema: type, path: str, name: str) -> str:
    """``; did you mean max_tokens?``, for an unknown field at ``path`` (as ``messages[0]``); else nothing."""
    known = {field.encode_name for one in _at(schema, path) for field in getattr(one, "fields", ())}
    near = get_close_matches(name, sorted(known), 2, 0.75)
    if not near:
        near = [other for group in ALIKE if name in group for other in group if other in known][:2]
    return f"; did you mean {' or '.join(near)}?" if near else ""


def valid_values(schema: type, path: str) -> str:
    """``; one of a, b`` where ``path`` takes one of a list of texts; else nothing."""
    found = {str(value) for one in _at(schema, path) for value in getattr(one, "values", ())}
    return f"; one of {', '.join(sorted(found))}" if found else ""


def _at(schema: type, path: str) -> list[Any]:
    """All that may stand at ``path`` of a body."""
    found = list(_alternatives([inspect.type_info(schema)]))
    for step in STEPS.finditer(path):
        found = list(_alternatives(one for kind in found for one in _inside(kind, step[1])))
    return found


def _inside(kind: Any, name: str | None) -> Iterable[Any]:
    if isinstance(kind, inspect.StructType):
        return [field.type for field in kind.fields if field.encode_name == name]
    if isinstance(kind, inspect.ListType | inspect.VarTupleType):
        return [kind.item_type]
    return [kind.value_type] if isinstance(kind, inspect.DictType) else []


def _alternatives(kinds: Iterable[Any]) -> Iterable[Any]:
    for kind in kinds:
        if isinstance(kind, inspect.UnionType):
            yield from kind.types
        else:
            yield kind

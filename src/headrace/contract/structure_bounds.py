"""Bounds on what a compiler of constraints is given. It is other people's code in the engine's process: it goes into
itself once for each level of nesting, and what it needs for a pattern grows with the square of its length. What is
beyond a bound ends every request there is, so it is refused before.

Looks at texts and nesting only; whether something is a constraint at all the compiler says.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from .errors import InvalidRequest

MAX_PATTERN = 1 << 14  # characters of one regular expression
MAX_GRAMMAR = 1 << 16
MAX_TEXT = 1 << 20  # characters of all names and texts in one: each is a state of the grammar, half a kilobyte and more
MAX_LEVELS = 256  # of a schema or a structural tag
MAX_NODES = 1 << 17  # objects and lists in one
MAX_REFS = 1 << 12  # each may refer to the next: the compiler's memory grows with their square, too


def check_regex(field: str, where: str, text: str) -> None:
    if len(text) > MAX_PATTERN:
        raise InvalidRequest(field, f"{where} has {len(text)} characters; at most {MAX_PATTERN}")


def check_grammar(field: str, where: str, text: str) -> None:
    if len(text) > MAX_GRAMMAR:
        raise InvalidRequest(field, f"{where} has {len(text)} characters; at most {MAX_GRAMMAR}")


def check_schema_text(field: str, text: str) -> Any:
    """A schema as JSON text; what it says. What is no JSON is left to the compiler (None), unless it is too deep to
    look at."""
    if text.count("[") + text.count("{") > MAX_NODES:
        raise InvalidRequest(field, f"the schema has more than {MAX_NODES} objects and lists")
    try:
        schema = json.loads(text)
    except RecursionError:
        raise _too_deep(field) from None
    except ValueError:
        return None
    check_tree(field, schema)
    return schema


def check_tree(field: str, value: Any) -> None:
    """A schema or a structural tag. Raises InvalidRequest naming ``field``."""
    nodes = refs = text = 0
    for depth, key, one in _walk(value):
        nodes += isinstance(one, dict | list)
        refs += key == "$ref"
        text += len(one) if isinstance(one, str) else sum(map(len, map(str, one))) if isinstance(one, dict) else 0
        if depth > MAX_LEVELS:
            raise _too_deep(field)
        if nodes > MAX_NODES:
            raise InvalidRequest(field, f"has more than {MAX_NODES} objects and lists")
        if refs > MAX_REFS:
            raise InvalidRequest(field, f"has more than {MAX_REFS} references")
        if text > MAX_TEXT:
            raise InvalidRequest(field, f"has more than {MAX_TEXT} characters")
        if key == "grammar" and isinstance(one, str):
            check_grammar(field, "a grammar in it", one)
        elif key == "pattern" and isinstance(one, str):
            check_regex(field, "a pattern in it", one)
        elif key == "patternProperties" and isinstance(one, dict):
            for pattern in one:
                check_regex(field, "a pattern in it", str(pattern))


def _walk(value: Any) -> Iterator[tuple[int, Any, Any]]:
    """Everything in it with its depth and the key that it stands under, without going into itself."""
    left: list[tuple[int, Any, Any]] = [(0, None, value)]
    while left:
        depth, key, one = found = left.pop()
        yield found
        if isinstance(one, dict):
            left += [(depth + 1, name, inner) for name, inner in one.items()]
        elif isinstance(one, list | tuple):
            left += [(depth + 1, key, inner) for inner in one]


def _too_deep(field: str) -> InvalidRequest:
    return InvalidRequest(field, f"is nested deeper than {MAX_LEVELS} levels")

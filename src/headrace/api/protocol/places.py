"""What a body's schema has at one of its places, for refusals that say what would be right there. Reads types only."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

import msgspec
from msgspec import inspect

STEP = re.compile(r"\.?(?P<name>[^.\[]+)|\[[^\]]*\]")


def fields_at(schema: type[msgspec.Struct], path: str) -> list[str]:
    """Names of the fields of what stands at ``path`` (``messages[0].role``; empty: the body). None where it is no
    object with fields."""
    return [
        field.encode_name
        for kind in _kinds(schema, path)
        if isinstance(kind, inspect.StructType)
        for field in kind.fields
    ]


def choices_at(schema: type[msgspec.Struct], path: str) -> list[str]:
    """The values of an enumeration at ``path``."""
    return [
        str(value) for kind in _kinds(schema, path) if isinstance(kind, inspect.LiteralType) for value in kind.values
    ]


@cache
def _type(schema: type[msgspec.Struct]) -> inspect.Type:
    return inspect.type_info(schema)


def _kinds(schema: type[msgspec.Struct], path: str) -> list[inspect.Type]:
    """All that may stand there: one, or the members of a union."""
    found = [_type(schema)]
    for step in STEP.finditer(path):
        found = [inner for kind in found for inner in _inner(kind, step["name"])]
    return found


def _inner(kind: inspect.Type, name: str | None) -> Iterator[inspect.Type]:
    """What is below ``kind`` at a field (None: at an index)."""
    if name is None and isinstance(kind, inspect.ListType):
        yield from _members(kind.item_type)
    elif name is not None and isinstance(kind, inspect.StructType):
        for field in kind.fields:
            if field.encode_name == name:
                yield from _members(field.type)


def _members(kind: inspect.Type) -> Iterator[inspect.Type]:
    yield from kind.types if isinstance(kind, inspect.UnionType) else (kind,)

"""Bytes of a request body to a schema. Every refusal is an InvalidRequest that names the field.

Nesting is bounded before anything is decoded: what comes later may walk a value recursively.
"""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec

from headrace.contract.errors import InvalidRequest
from headrace.contract.near import did_you_mean

from .places import choices_at, fields_at

MAX_DEPTH = 64
MAX_NODES = 1 << 17  # arrays and objects of one body: making millions of them would hold up everyone
TOKENS = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)
PLACE = re.compile(r" - at `(?:key` in `)?\$(?P<path>[^`]*)`$")
NAMED = re.compile(r"(?:unknown field|missing required field) `(?P<name>[^`]+)`")

FORMATS = {"text": "text.format", "output_config": "output_config.format"}  # by the field that a protocol has it in
SPECIAL = {
    "web_search_options": ": nothing is searched here",
    "continue_final_message": ": an answer always begins anew; completions go on with any text",
}
GUIDED = re.compile(r"guided_(?P<kind>json|regex|choice|grammar)")

Body = TypeVar("Body", bound=msgspec.Struct)


def decode(raw: bytes, schema: type[Body]) -> Body:
    """The body as ``schema``. Raises InvalidRequest: not JSON, too deep, unknown field, wrong type."""
    check_depth(raw)
    try:
        return msgspec.json.decode(raw, type=schema)
    except msgspec.ValidationError as error:
        raise _named(str(error), schema) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest("body", f"is not valid JSON: {error}") from error


def convert(value: object, schema: type[Body], field: str) -> Body:
    """A decoded value as ``schema``; errors name the place below ``field``."""
    try:
        return msgspec.convert(value, schema)
    except msgspec.ValidationError as error:
        inner = _named(str(error), schema)
        raise InvalidRequest(f"{field}.{inner.field}".removesuffix(".body"), inner.words) from error


def check_depth(raw: bytes, limit: int = MAX_DEPTH) -> None:
    """Refuses JSON that nests deeper than ``limit`` or has too many parts, in time linear in its size."""
    depth = nodes = 0
    for match in TOKENS.finditer(raw):
        first = raw[match.start()]
        if first in b"[{":
            depth, nodes = depth + 1, nodes + 1
            if depth > limit:
                raise InvalidRequest("body", f"is nested deeper than {limit} levels")
            if nodes > MAX_NODES:
                raise InvalidRequest("body", f"holds more than {MAX_NODES} arrays and objects")
        elif first in b"]}":
            depth -= 1


class _Named(InvalidRequest):
    """Keeps the words apart from the field, so that a caller can prefix the place."""

    def __init__(self, field: str, words: str) -> None:
        super().__init__(field, words)
        self.words = words


def _named(message: str, schema: type[msgspec.Struct]) -> _Named:
    """The decoder's message split into place and words: ``$.messages[0]`` becomes ``messages[0]``."""
    place = PLACE.search(message)
    path = place["path"].lstrip(".") if place else ""
    words = message[: place.start()] if place else message
    if name := NAMED.search(words):
        kind = (
            f"unknown field{_elsewhere(name['name'], fields_at(schema, path))}" if "unknown" in words else "is required"
        )
        return _Named(".".join(part for part in (path, name["name"]) if part), kind)
    if words.startswith("Invalid enum value") and (choices := choices_at(schema, path)):
        words = f"must be one of {', '.join(choices)}, got{words.removeprefix('Invalid enum value')}"
    return _Named(path or "body", words[0].lower() + words[1:])


def _elsewhere(name: str, known: list[str]) -> str:
    """Where this server, or this body, has what another one has under the name."""
    if kind := GUIDED.fullmatch(name):
        return f"; this server has it as structured_outputs.{kind['kind']}"
    if name == "structured_outputs" and (found := FORMATS.keys() & set(known)):
        return f"; here {FORMATS[found.pop()]} takes a JSON schema, and chat and completions take the other kinds"
    return SPECIAL.get(name) or did_you_mean(name, known)

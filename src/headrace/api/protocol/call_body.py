"""One tool call's JSON object, read character by character, so that its arguments can be streamed as they come."""

from __future__ import annotations

import json
from typing import Any

from .decode import MAX_DEPTH, check_depth

MOST_DEEP = MAX_DEPTH - 8  # a conversation that holds the call is a body again


class CallBody:
    """``{"name": ..., KEY: ...}`` in either order. ``arguments`` grows as raw JSON text; ``raw`` is all that was read.

    Reads on until the brace that opened it is closed; says nothing about validity, see ``parsed``.
    """

    KEYS = ("arguments", "parameters")

    def __init__(self) -> None:
        self.raw = ""
        self.name: str | None = None
        self.arguments = ""
        self.closed = False
        self.in_string = False
        self._depth = 0
        self._escaped = False
        self._key: str | None = None
        self._part = ""

    def push(self, text: str) -> str:
        """Takes characters up to the closing brace; returns what is left over."""
        for i, char in enumerate(text):
            self._take(char)
            if self.closed:
                self.raw += text[: i + 1]
                return text[i + 1 :]
        self.raw += text
        return ""

    def _take(self, char: str) -> None:
        if self.in_string:
            self._in_string(char)
        elif char == '"':
            self.in_string = True
        elif char in "{[":
            self._depth += 1
            if self._depth == 1:
                return
        elif char in "}]":
            self._depth -= 1
            if self._depth == 0:
                self._end_value()
                self.closed = True
                return
        elif self._depth == 1 and char in ":,":
            self._end_key() if char == ":" else self._end_value()
            return
        self._keep(char)

    def _in_string(self, char: str) -> None:
        if self._escaped:
            self._escaped = False
        elif char == "\\":
            self._escaped = True
        elif char == '"':
            self.in_string = False

    def _keep(self, char: str) -> None:
        if self._key in self.KEYS:
            if self.arguments or not char.isspace():
                self.arguments += char
        else:
            self._part += char

    def _end_key(self) -> None:
        self._key, self._part = _text(self._part), ""

    def _end_value(self) -> None:
        if self._key == "name":
            self.name = _text(self._part)
        self._key, self._part = None, ""

    def parsed(self) -> bool:
        """Whether it is JSON with a name and, if any, arguments that are an object; given twice they are none."""
        value = object_of(self.raw)
        if value is None or object_of(self.arguments or "{}") is None:
            return False
        return isinstance(value.get("name"), str) and all(isinstance(value.get(key, {}), dict) for key in self.KEYS)


def object_of(text: str) -> dict[str, Any] | None:
    """The JSON object that ``text`` is; None where it is none, or deeper than could be sent back here. Strings may hold
    lone surrogates, which JSON can escape and no encoding can write."""
    try:
        check_depth(text.encode("utf-8", "replace"), MOST_DEEP)
        value = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _text(part: str) -> str | None:
    try:
        value = json.loads(part)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, str) else None

"""What a wrong name was probably meant to be, for refusals. Suggests only: nothing is ever read under another name."""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches

from .errors import InvalidRequest

MAX_CHARS = 64  # comparing takes time by the square of a name's length, and clients may send any

SAME = (  # what different protocols and servers call one thing
    ("max_tokens", "max_completion_tokens", "max_output_tokens"),
    ("stop", "stop_sequences"),
    ("messages", "input", "prompt"),
    ("response_format", "text", "output_config"),
    ("prompt", "text"),
    ("reasoning_effort", "reasoning", "output_config"),
    ("system", "instructions"),
    ("parameters", "input_schema", "schema"),
    ("schema", "json_schema"),
)


def did_you_mean(name: str, known: Collection[str]) -> str:
    """``; did you mean max_tokens?``, or nothing where no known name is near or has the same sense."""
    if len(name) > MAX_CHARS:
        return ""
    same = [one for group in SAME if name in group for one in group if one in known]
    near = same[:1] or get_close_matches(name, known, n=2)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def check_fields(where: str, value: dict[str, object], known: Collection[str]) -> None:
    """Raises InvalidRequest naming the first field of ``value`` that is not ``known``. ``where``: the value's place."""
    for name in value:
        if name not in known:
            raise InvalidRequest(f"{where}.{name}", f"unknown field{did_you_mean(name, known)}")

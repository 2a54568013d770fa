"""From what callers pass to plain, checked values: numpy numbers, ranges and arrays become ints, floats and lists.

Everything past this door may rely on it: a wrong type is an InvalidRequest naming the field here, never a surprise in
the engine's loop or in another process.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Mapping
from typing import Any

from .errors import InvalidRequest

INT32_MAX = 2**31 - 1


def whole(field: str, value: Any, low: int, high: int = INT32_MAX) -> int:
    """An int within bounds, from anything that is a whole number (numpy's too, bools not)."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise InvalidRequest(field, f"must be a whole number, got {value!r}")
    number = int(value)
    if not low <= number <= high:
        raise InvalidRequest(field, f"must lie between {low} and {high}, got {number}")
    return number


def real(field: str, value: Any, low: float, high: float, open_low: bool = False) -> float:
    """A finite float within bounds."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise InvalidRequest(field, f"must be a finite number, got {value!r}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise InvalidRequest(field, "must be a finite number")
    if number < low or number > high or (open_low and number == low):
        raise InvalidRequest(field, f"must lie {'above' if open_low else 'from'} {low} up to {high}, got {number}")
    return number


def flag(field: str, value: Any) -> bool:
    """True or False, nothing that merely looks like it."""
    if not isinstance(value, bool):
        raise InvalidRequest(field, f"must be true or false, got {value!r}")
    return value


def token_ids(field: str, value: Any, vocab_size: int) -> list[int]:
    """Whole numbers in [0, vocab_size), from any iterable of them."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise InvalidRequest(field, f"must be a list of token ids, got {type(value).__name__}")
    ids = []
    for token in value:
        if isinstance(token, bool) or not isinstance(token, numbers.Integral):
            raise InvalidRequest(field, f"token ids are whole numbers, got {token!r}")
        number = int(token)
        if not 0 <= number < vocab_size:
            raise InvalidRequest(field, f"token id {number} is outside the vocabulary of {vocab_size}")
        ids.append(number)
    return ids


def text(field: str, value: Any, *, may_be_empty: bool = True) -> str:
    """Text that can be encoded (no lone surrogates)."""
    if not isinstance(value, str):
        raise InvalidRequest(field, f"must be text, got {type(value).__name__}")
    if not value and not may_be_empty:
        raise InvalidRequest(field, "must be non-empty text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(field, "holds a character that is no valid Unicode (a lone surrogate)") from None
    return value


def biases(field: str, value: Any, vocab_size: int) -> dict[int, float]:
    """Token id -> bias in [-100, 100]."""
    if not isinstance(value, Mapping):
        raise InvalidRequest(field, f"must map token ids to numbers, got {type(value).__name__}")
    ids = token_ids(field, list(value), vocab_size)
    return {token: real(field, bias, -100.0, 100.0) for token, bias in zip(ids, value.values())}


def stops(field: str, value: Any) -> list[str]:
    """One stop string or several, none of them empty."""
    if isinstance(value, str):
        value = [value]
    if isinstance(value, bytes | Mapping) or not isinstance(value, Iterable):
        raise InvalidRequest(field, f"must be text or a list of texts, got {type(value).__name__}")
    return [text(field, item, may_be_empty=False) for item in value]

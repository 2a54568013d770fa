"""How much one request may make of everybody: what it costs outside the engine's turns, bounded before any work.

Choices and prompts of one request multiply whatever it asks for: each has lists, stop strings and constraints of its
own on the way to the engine, and rows of logprobs on the way back, on the threads that serve all others too. Never
looks at what a text says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from headrace.contract.errors import InvalidRequest
from headrace.contract.request import STRUCTURES, SamplingParams

from ..prompts import Prepared
from ..protocol.sampling import MAX_STOPS

MAX_STOP_CHARS = 1 << 18  # of all stop strings, times choices: each choice prepares its own search
MAX_LISTED_IDS = 1 << 21  # of all lists of ids, times choices: each choice travels with its own
MAX_CONSTRAINT_BYTES = 1 << 25  # of a structure's text, times choices
MAX_PICTURE_BYTES = 1 << 27  # of pictures in the sizes they are read in, times choices: each choice travels with all
MAX_STEP_LOGPROBS = 1 << 12  # ids reported for one token of every choice: what one step may bring
MAX_LOGPROBS = 1 << 20  # ids reported for all tokens of all choices: an answer told at once holds them to its end
MAX_PROMPT_LOGPROBS = 1 << 18  # ids reported for all tokens of all prompts


def check_extent(prepared: Sequence[Prepared]) -> None:
    """Raises InvalidRequest naming the field that asks for too much. All prompts of a request ask alike."""
    if not prepared:
        return
    wanted = prepared[0].sampling
    check_wishes(wanted, sum(len(one.requests) for one in prepared))
    _check_answer(prepared)
    _check_pictures(prepared)
    if wanted.prompt_logprobs is not None:
        tokens = sum(len(one.token_ids) for one in prepared)
        _bound("prompt_logprobs", "ids", wanted.prompt_logprobs, tokens, MAX_PROMPT_LOGPROBS, "prompt tokens")


def check_wishes(wanted: SamplingParams, choices: int) -> None:
    """What can be said before any prompt is prepared: each of the ``choices`` will be looked at on its own. Raises
    InvalidRequest."""
    stops = wanted.stop_strings
    if len(stops) > MAX_STOPS:
        raise InvalidRequest("stop", f"at most {MAX_STOPS} stop strings, got {len(stops)}")
    _bound("stop", "characters of stop strings", sum(map(len, stops)), choices, MAX_STOP_CHARS)
    for field in ("logit_bias", "allowed_token_ids", "banned_token_ids", "stop_token_ids"):
        _bound(field, "token ids", len(getattr(wanted, field) or ()), choices, MAX_LISTED_IDS)
    _check_constraint(wanted, choices)
    _bound("logprobs", "ids", wanted.logprobs or 0, choices, MAX_STEP_LOGPROBS)


def _check_answer(prepared: Sequence[Prepared]) -> None:
    """``max_tokens`` is set by now: to what was asked, or to what the context has room for."""
    tokens = sum(len(one.requests) * (one.sampling.max_tokens or 0) for one in prepared)
    _bound("logprobs", "ids", prepared[0].sampling.logprobs or 0, tokens, MAX_LOGPROBS, "tokens (max_tokens)")


def _check_pictures(prepared: Sequence[Prepared]) -> None:
    size = sum(len(picture.pixels) for one in prepared for request in one.requests for picture in request.pictures)
    if size > MAX_PICTURE_BYTES:
        words = f"{size} bytes of pixels, over all choices, are more than the {MAX_PICTURE_BYTES} of one request"
        raise InvalidRequest("images", words)


def _check_constraint(wanted: SamplingParams, choices: int) -> None:
    structure = wanted.structured_outputs
    if structure is not None:
        given: list[Any] = [getattr(structure, name) for name in STRUCTURES]
        size = len(msgspec.json.encode(given))
        _bound(structure.field, "bytes of a structure", size, choices, MAX_CONSTRAINT_BYTES)


def _bound(field: str, what: str, size: int, times: int, most: int, of: str = "choices") -> None:
    if size * times > most:
        words = f"{size} {what} for each of {times} {of} are more than the {most} that one request may ask for"
        raise InvalidRequest(field, words)

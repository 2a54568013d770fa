"""What a caller asks of an engine: SamplingParams (how to draw) and Request (what to continue). Token ids only."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from .errors import InvalidRequest

MAX_TOP_LOGPROBS = 1024
_INT32_MAX = 2**31 - 1


class StructuredOutputs(msgspec.Struct, frozen=True, kw_only=True):
    """What an output must look like: exactly one of these. Names are those vLLM users know.

    ``json``: a JSON schema, as an object or its text. ``json_object``: any JSON object. ``regex``: the whole output
    matches. ``choice``: one of these texts. ``grammar``: EBNF with a rule ``root``. ``field`` is what errors name.
    """

    json: str | dict[str, Any] | bool | None = None
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    field: str = "structured_outputs"

    def check(self) -> None:
        """Refuses what no compiler need be asked about."""
        given = [name for name in STRUCTURES if getattr(self, name) not in (None, False)]
        if self.json is False:
            raise InvalidRequest(self.field, "the schema false accepts nothing")
        if len(given) != 1:
            raise InvalidRequest(self.field, f"give exactly one of {', '.join(STRUCTURES)}, got {len(given)}")
        if self.choice is not None and not (self.choice and all(self.choice)):
            raise InvalidRequest(self.field, "choice must hold at least one text, and no empty one")
        if any(isinstance(text := getattr(self, name), str) and not text.strip() for name in given):
            raise InvalidRequest(self.field, f"{given[0]} is empty")


STRUCTURES = ("json", "json_object", "regex", "choice", "grammar")


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How to continue a prompt. Field names and defaults are those vLLM users know.

    ``max_tokens`` None means up to the model's context. ``top_k`` 0 or -1 is off, ``top_p`` 1 is off, ``min_p`` 0
    is off, ``temperature`` 0 is greedy. ``seed`` None draws a fresh one per request; with a seed the noise depends
    on (seed, position, id) alone. ``logprobs`` n reports the chosen token and the n best of the raw distribution.
    Raises InvalidRequest, naming the field, from ``check``.
    """

    n: int = 1
    max_tokens: int | None = 16
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    banned_token_ids: Sequence[int] | None = None
    stop: Sequence[str] | str | None = None
    stop_token_ids: Sequence[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    seed: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    structured_outputs: StructuredOutputs | None = None

    def check(self, vocab_size: int) -> None:
        """Refuses values that cannot be served, before any work."""
        _check_counts(self)
        _check_reals(self)
        _check_ids(self, vocab_size)
        _check_structure(self)

    @property
    def stop_strings(self) -> tuple[str, ...]:
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)


def _whole(params: SamplingParams, field: str, low: int, high: int = _INT32_MAX) -> None:
    value = getattr(params, field)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequest(field, f"must be a whole number, got {value!r}")
    if not low <= value <= high:
        raise InvalidRequest(field, f"must lie between {low} and {high}, got {value}")


def _check_counts(params: SamplingParams) -> None:
    _whole(params, "n", 1, 1024)
    if params.max_tokens is not None:
        _whole(params, "max_tokens", 1)
    _whole(params, "min_tokens", 0)
    if params.max_tokens is not None and params.min_tokens > params.max_tokens:
        raise InvalidRequest("min_tokens", f"{params.min_tokens} exceeds max_tokens {params.max_tokens}")
    _whole(params, "top_k", -1)
    if params.seed is not None:
        _whole(params, "seed", -(2**63), 2**63 - 1)
    for field in ("logprobs", "prompt_logprobs"):
        if getattr(params, field) is not None:
            _whole(params, field, 0, MAX_TOP_LOGPROBS)


def _real(params: SamplingParams, field: str, low: float, high: float, open_low: bool = False) -> None:
    value = getattr(params, field)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidRequest(field, f"must be a finite number, got {value!r}")
    if value < low or value > high or (open_low and value == low):
        raise InvalidRequest(field, f"must lie {'above' if open_low else 'from'} {low} up to {high}, got {value}")


def _check_reals(params: SamplingParams) -> None:
    _real(params, "temperature", 0.0, 100.0)
    _real(params, "top_p", 0.0, 1.0, open_low=True)
    _real(params, "min_p", 0.0, 1.0)
    _real(params, "repetition_penalty", 0.0, 100.0, open_low=True)
    _real(params, "presence_penalty", -100.0, 100.0)
    _real(params, "frequency_penalty", -100.0, 100.0)


def check_token_ids(field: str, ids: Sequence[int], vocab_size: int) -> None:
    """Refuses anything but whole numbers in [0, vocab_size)."""
    for token in ids:
        if isinstance(token, bool) or not hasattr(token, "__index__"):
            raise InvalidRequest(field, f"token ids are whole numbers, got {token!r}")
        if not 0 <= token < vocab_size:
            raise InvalidRequest(field, f"token id {token} is outside the vocabulary of {vocab_size}")


def _check_ids(params: SamplingParams, vocab_size: int) -> None:
    for field in ("allowed_token_ids", "banned_token_ids", "stop_token_ids"):
        check_token_ids(field, getattr(params, field) or (), vocab_size)
    if params.allowed_token_ids is not None and not params.allowed_token_ids:
        raise InvalidRequest("allowed_token_ids", "an empty list allows nothing; leave it out instead")
    if params.allowed_token_ids and set(params.allowed_token_ids) <= set(params.banned_token_ids or ()):
        raise InvalidRequest("banned_token_ids", "bans every id that allowed_token_ids allows")
    bias = params.logit_bias or {}
    check_token_ids("logit_bias", tuple(bias), vocab_size)
    for token, value in bias.items():
        if not isinstance(value, int | float) or not -100.0 <= value <= 100.0:
            raise InvalidRequest("logit_bias", f"the bias of id {token} must lie in [-100, 100], got {value!r}")
    for text in params.stop_strings:
        if not isinstance(text, str) or not text:
            raise InvalidRequest("stop", "stop strings must be non-empty text")


def _check_structure(params: SamplingParams) -> None:
    wanted = params.structured_outputs
    if wanted is None:
        return
    if not isinstance(wanted, StructuredOutputs):
        raise InvalidRequest("structured_outputs", f"must be StructuredOutputs, got {type(wanted).__name__}")
    wanted.check()
    for name in ("ignore_eos", "min_tokens"):
        if getattr(params, name):
            raise InvalidRequest(name, "contradicts structured outputs, which say themselves where they end")


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence to continue (``n`` choices are n requests). ``sampling.seed`` and ``max_tokens`` are set."""

    request_id: str
    prompt_token_ids: list[int]
    sampling: SamplingParams
    eos_ids: tuple[int, ...] = ()
    priority: int = 0
    arrival: float = 0.0
    cache_salt: str = ""
    adapter: str = ""


def choice_seed(seed: int, choice: int) -> int:
    """The seed of choice ``k`` of ``n``: the seed itself for k = 0, else a hash of (seed, k), as a signed 64-bit."""
    if choice == 0:
        return seed
    digest = hashlib.sha256(f"headrace choice {seed} {choice}".encode()).digest()
    return int.from_bytes(digest[:8], "little", signed=True)

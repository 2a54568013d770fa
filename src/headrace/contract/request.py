"""What a caller asks of an engine: SamplingParams (how to draw) and Request (what to continue). Token ids only."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

import msgspec

from . import plain
from .errors import InvalidRequest
from .json_schema import first_gap, pattern_gap
from .picture import Picture
from .structure_bounds import check_grammar, check_regex, check_schema_text, check_tree

MAX_TOP_LOGPROBS = 1024
NO_TEMPERATURE = 2.0**-150  # and anything below is zero in float32, in which tokens are drawn


class StructuredOutputs(msgspec.Struct, frozen=True, kw_only=True):
    """What an output must look like: exactly one of these. Names are those vLLM users know.

    ``json``: a JSON schema, as an object or its text. ``json_object``: any JSON object. ``regex``: the whole output
    matches. ``choice``: one of these texts. ``grammar``: EBNF with a rule ``root``. ``structural_tag``:
    xgrammar's object of that name, free text and formats in turn. ``field`` is what errors name. ``lenient``: what no
    answer can be held to of a schema (``contract.json_schema``) is left out; else the schema is refused.
    """

    json: str | dict[str, Any] | bool | None = None
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    structural_tag: dict[str, Any] | None = None
    field: str = "structured_outputs"
    lenient: bool = False

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
        schema = self._within_bounds()
        if (words := pattern_gap(self.regex)) is not None:
            raise InvalidRequest(self.field, f"regex: {words}")
        if not self.lenient:
            check_schema(schema, self.field)
            for part in self._schemas_of_tag():
                check_schema(part, self.field)

    def _schemas_of_tag(self) -> Iterable[Any]:
        pending: list[Any] = [self.structural_tag]
        while pending:
            part = pending.pop()
            if isinstance(part, dict) and part.get("type") == "json_schema":
                yield part.get("json_schema")
            elif isinstance(part, dict | list):
                pending += part.values() if isinstance(part, dict) else part

    def _within_bounds(self) -> Any:
        """The schema, where there is one; what is no JSON, or no schema, the compiler refuses."""
        if self.regex is not None:
            check_regex(self.field, "regex", self.regex)
        if self.grammar is not None:
            check_grammar(self.field, "grammar", self.grammar)
        schema = check_schema_text(self.field, self.json) if isinstance(self.json, str) else self.json
        check_tree(self.field, self.json if isinstance(self.json, dict) else self.structural_tag or self.choice)
        return schema


def check_schema(schema: Any, field: str) -> None:
    """Raises InvalidRequest, naming the place, where an answer could not be held to ``schema``."""
    if (gap := first_gap(schema)) is not None:
        place, words = gap
        raise InvalidRequest(field, f"schema{place[:200]}: {words}" if place else f"schema: {words}")


STRUCTURES = ("json", "json_object", "regex", "choice", "grammar", "structural_tag")


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How to continue a prompt. Field names and defaults are those vLLM users know.

    ``max_tokens`` None means up to the model's context. ``top_k`` 0 or -1 is off, ``top_p`` 1 is off, ``min_p`` 0
    is off, ``temperature`` 0 is greedy (as is what float32 rounds to 0). ``seed`` None draws a fresh one per request;
    with a seed the noise depends on (seed, position, id) alone. ``logprobs`` n reports the chosen token and the n best
    of the raw distribution, and may not exceed the vocabulary.
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
        self.settled(vocab_size)

    def settled(self, vocab_size: int) -> SamplingParams:
        """The same wishes in plain types, checked. Raises InvalidRequest naming the field."""
        values: dict[str, Any] = {**_counts(self, vocab_size), **_reals(self), **_ids(self, vocab_size)}
        for field in ("include_stop_str_in_output", "ignore_eos", "skip_special_tokens"):
            values[field] = plain.flag(field, getattr(self, field))
        if self.stop is not None:
            values["stop"] = plain.stops("stop", self.stop)
        _check_structure(self)
        return msgspec.structs.replace(self, **values)

    @property
    def stop_strings(self) -> tuple[str, ...]:
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)


def _counts(params: SamplingParams, vocab_size: int) -> dict[str, Any]:
    bounds = {"n": (1, 1024), "max_tokens": (1, plain.INT32_MAX), "min_tokens": (0, plain.INT32_MAX)}
    bounds |= {"top_k": (-1, plain.INT32_MAX), "seed": (-(2**63), 2**63 - 1)}
    most_ids = min(MAX_TOP_LOGPROBS, vocab_size)
    bounds |= {"logprobs": (0, most_ids), "prompt_logprobs": (0, most_ids)}
    values: dict[str, Any] = {}
    for field, (low, high) in bounds.items():
        value = getattr(params, field)
        if value is not None or field in ("n", "min_tokens", "top_k"):
            values[field] = plain.whole(field, value, low, high)
    most = values.get("max_tokens")
    if most is not None and values["min_tokens"] > most:
        raise InvalidRequest("min_tokens", f"{params.min_tokens} exceeds max_tokens {most}")
    return values


def _reals(params: SamplingParams) -> dict[str, float]:
    # A repetition penalty near zero overflows float32 when it multiplies a logit.
    bounds = {"temperature": (0.0, 100.0), "min_p": (0.0, 1.0), "repetition_penalty": (0.01, 100.0)}
    bounds |= {"presence_penalty": (-100.0, 100.0), "frequency_penalty": (-100.0, 100.0)}
    values = {f: plain.real(f, getattr(params, f), low, high) for f, (low, high) in bounds.items()}
    if values["temperature"] <= NO_TEMPERATURE:
        values["temperature"] = 0.0
    return values | {"top_p": plain.real("top_p", params.top_p, 0.0, 1.0, open_low=True)}


def _ids(params: SamplingParams, vocab_size: int) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for field in ("allowed_token_ids", "banned_token_ids", "stop_token_ids"):
        if getattr(params, field) is not None:
            values[field] = plain.token_ids(field, getattr(params, field), vocab_size)
    allowed, banned = values.get("allowed_token_ids"), values.get("banned_token_ids") or ()
    if allowed is not None and not allowed:
        raise InvalidRequest("allowed_token_ids", "an empty list allows nothing; leave it out instead")
    if allowed and set(allowed) <= set(banned):
        raise InvalidRequest("banned_token_ids", "bans every id that allowed_token_ids allows")
    if len(set(banned)) >= vocab_size:
        raise InvalidRequest("banned_token_ids", "bans every id of the vocabulary")
    if params.logit_bias is not None:
        values["logit_bias"] = plain.biases("logit_bias", params.logit_bias, vocab_size)
    return values


def require_a_token(params: SamplingParams, eos_ids: Iterable[int], vocab_size: int) -> None:
    """Raises InvalidRequest when ``min_tokens`` forbids to end and the lists leave nothing else to draw."""
    if not params.min_tokens:
        return
    ends = {*(() if params.ignore_eos else eos_ids), *(params.stop_token_ids or ())}
    without = ends | set(params.banned_token_ids or ())
    allowed = params.allowed_token_ids
    left = vocab_size - len(without) if allowed is None else len(set(allowed) - without)
    if left <= 0:
        words = "forbids the ids that end the text, and the lists of allowed, banned and stop ids leave no other"
        raise InvalidRequest("min_tokens", words)


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


KVClass = Literal["chat", "agent"]
"""Who wrote a prompt. What agents leave in a KV store is forgotten sooner."""
KV_CLASSES: tuple[str, ...] = get_args(KVClass)
CHAT: KVClass = "chat"


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence to continue (``n`` choices are n requests). ``sampling.seed`` and ``max_tokens`` are set.

    ``shares`` names a request submitted before with the same prompt and limits: another choice of it.
    ``tenant``: whose it is, for quotas and purging; empty where no tenants are configured, and the salt says it.
    """

    request_id: str
    prompt_token_ids: list[int]
    sampling: SamplingParams
    eos_ids: tuple[int, ...] = ()
    priority: int = 0
    arrival: float = 0.0
    cache_salt: str = ""
    tenant: str = ""
    kv_class: KVClass = CHAT
    shares: str = ""
    adapter: str = ""
    pictures: tuple[Picture, ...] = ()


def prompt_seed(token_ids: Sequence[int]) -> int:
    """The seed of an unseeded request in deterministic mode: a hash of its prompt and of nothing else."""
    ids = ",".join(map(str, token_ids))
    digest = hashlib.sha256(f"headrace prompt {ids}".encode()).digest()
    return int.from_bytes(digest[:8], "little", signed=True)


def choice_seed(seed: int, choice: int) -> int:
    """The seed of choice ``k`` of ``n``: the seed itself for k = 0, else a hash of (seed, k), as a signed 64-bit."""
    if choice == 0:
        return seed
    digest = hashlib.sha256(f"headrace choice {seed} {choice}".encode()).digest()
    return int.from_bytes(digest[:8], "little", signed=True)

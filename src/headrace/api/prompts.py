"""Prompts as callers give them become requests: tokenized, checked, one per choice. Nothing is queued here."""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from headrace.contract import plain
from headrace.contract.errors import InvalidRequest
from headrace.contract.picture import Eyes, Picture
from headrace.contract.request import (
    CHAT,
    KV_CLASSES,
    Request,
    SamplingParams,
    choice_seed,
    prompt_seed,
    require_a_token,
)
from headrace.contract.salts import plain_salt

from .pictures import expand, refuse_unfilled
from .text.tokenizer import Tokenizer

Prompt = str | Sequence[int] | Mapping[str, Any]
"""Text, token ids, or a mapping with ``prompt`` or ``prompt_token_ids`` and optionally ``cache_salt``, ``priority``,
``kv_class`` (``chat`` or ``agent``), ``images``: one picture (bytes of a file,
or an array) for each place holder of the model."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """One prompt, ready to submit: ``requests`` has one entry per choice."""

    request_id: str
    prompt: str | None
    token_ids: list[int]
    sampling: SamplingParams
    requests: list[Request]


class Preparer:
    """Knows the model's vocabulary and context; makes requests that the engine cannot refuse for their content."""

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        vocab_size: int,
        max_model_len: int,
        *,
        deterministic: bool = False,
        eyes: Eyes | None = None,
        skips_rows: bool = False,
        most_picture_rows: int | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._max_model_len = max_model_len
        self._deterministic = deterministic
        self._eyes = eyes
        self._skips_rows = skips_rows
        self._most_picture_rows = most_picture_rows
        self._holder = "" if eyes is None or tokenizer is None else tokenizer.token_text(eyes.token_id)
        self._eos_ids = tokenizer.eos_ids if tokenizer is not None else ()
        self._numbers = itertools.count()

    def prepare(
        self, prompt: Prompt, sampling: SamplingParams | None = None, request_id: str | None = None
    ) -> Prepared:
        """Raises InvalidRequest naming the field at fault."""
        if sampling is not None and not isinstance(sampling, SamplingParams):
            raise InvalidRequest("sampling_params", f"must be SamplingParams, got {type(sampling).__name__}")
        sampling = (sampling or SamplingParams()).settled(self._vocab_size)
        fields = prompt if isinstance(prompt, Mapping) else {}
        if plain.text("kv_class", fields.get("kv_class", CHAT)) not in KV_CLASSES:
            raise InvalidRequest("kv_class", f"must be {' or '.join(KV_CLASSES)}, got {fields['kv_class']!r}")
        text, ids = self._tokens(prompt)
        pictures: tuple[Picture, ...] = ()
        if "images" in fields:
            most, check = self._most_picture_rows, self._check_length
            ids, pictures = expand(self._eyes, ids, fields["images"], most, check, self._holder)
        else:
            refuse_unfilled(self._eyes, ids, self._holder)
        self._check_length(len(ids))
        self._check_stops(sampling)
        if self._skips_rows and sampling.prompt_logprobs is not None:
            raise InvalidRequest("prompt_logprobs", "this engine skips rows of prompts (prefill_keep): they have none")
        require_a_token(sampling, self._eos_ids, self._vocab_size)
        number = next(self._numbers)
        name = plain.text("request_id", f"request-{number}" if request_id is None else request_id, may_be_empty=False)
        sampling = self._completed(sampling, ids)
        # The engine's names are made unique here: callers may reuse theirs at once, or call one like a choice.
        names = [f"{name}\x1f{number}\x1f{k}" for k in range(sampling.n)]
        requests = [self._request(names, k, ids, sampling, fields, pictures) for k in range(sampling.n)]
        return Prepared(name, text, ids, sampling, requests)

    def _tokens(self, prompt: Prompt) -> tuple[str | None, list[int]]:
        text: str | None = None
        ids: Any = prompt
        if isinstance(prompt, Mapping):
            unknown = set(prompt) - {"prompt", "prompt_token_ids", "cache_salt", "priority", "kv_class", "images"}
            if unknown:
                raise InvalidRequest(min(map(str, unknown)), "unknown field of a prompt")
            text, ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
        elif isinstance(prompt, str):
            text, ids = prompt, None
        if ids is not None:
            if isinstance(ids, list):
                self._check_length(len(ids))  # before each id is looked at
            return text, plain.token_ids("prompt_token_ids", ids, self._vocab_size)
        if not isinstance(text, str):
            raise InvalidRequest("prompt", f"must be text or token ids, got {type(text).__name__}")
        if self._tokenizer is None:
            raise InvalidRequest("prompt", "this model has no tokenizer: give prompt_token_ids")
        if not text:
            raise InvalidRequest("prompt", "must not be empty")
        self._tokenizer.check_fits("prompt", text, self._max_model_len)
        return text, self._tokenizer.encode(text)

    def _check_length(self, num_tokens: int) -> None:
        if not num_tokens:
            raise InvalidRequest("prompt", "must hold at least one token")
        if num_tokens >= self._max_model_len:
            raise InvalidRequest(
                "prompt",
                f"{num_tokens} tokens leave no room to generate: the context is {self._max_model_len} tokens",
            )

    def _check_stops(self, sampling: SamplingParams) -> None:
        if sampling.stop_strings and self._tokenizer is None:
            raise InvalidRequest("stop", "this model has no tokenizer, so no text to stop at")

    def _completed(self, sampling: SamplingParams, ids: Sequence[int]) -> SamplingParams:
        """Open wishes settled: a seed, and no more tokens than the context has room for."""
        room = self._max_model_len - len(ids)
        max_tokens = room if sampling.max_tokens is None else min(sampling.max_tokens, room)
        if sampling.min_tokens > max_tokens:
            raise InvalidRequest(
                "min_tokens", f"{sampling.min_tokens} exceeds the {max_tokens} tokens there is room for"
            )
        seed = self._fresh_seed(ids) if sampling.seed is None else sampling.seed
        return msgspec.structs.replace(sampling, max_tokens=max_tokens, seed=seed)

    def _fresh_seed(self, ids: Sequence[int]) -> int:
        """Deterministic: nothing but the prompt, so that neither order nor neighbours show."""
        return prompt_seed(ids) if self._deterministic else secrets.randbits(62)

    def _request(
        self,
        names: list[str],
        choice: int,
        ids: list[int],
        sampling: SamplingParams,
        fields: Mapping[str, Any],
        pictures: tuple[Picture, ...],
    ) -> Request:
        assert sampling.seed is not None
        return Request(
            request_id=names[choice],
            shares=names[0] if choice else "",
            prompt_token_ids=ids,
            sampling=msgspec.structs.replace(sampling, n=1, seed=choice_seed(sampling.seed, choice)),
            eos_ids=self._eos_ids,
            priority=plain.whole("priority", fields.get("priority", 0), -plain.INT32_MAX),
            cache_salt=plain_salt("cache_salt", fields.get("cache_salt", "")),
            kv_class=fields.get("kv_class", CHAT),
            arrival=time.monotonic(),
            pictures=pictures,
        )

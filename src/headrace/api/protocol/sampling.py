"""Sampling wishes as bodies spell them, in every protocol alike, and how they become SamplingParams.

Names are OpenAI's, then vLLM's. Values are checked where the vocabulary is known (``SamplingParams.check``); what is
checked here is what only a body can get wrong.
"""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.contract import plain
from headrace.contract.errors import InvalidRequest
from headrace.contract.request import CHAT, KVClass, SamplingParams

INT32 = range(-(2**31), 2**31)
MAX_SALT_CHARS = 1024
MAX_STOPS = 64
OPENAI_BOUNDS = {"temperature": (0.0, 2.0), "presence_penalty": (-2.0, 2.0), "frequency_penalty": (-2.0, 2.0)}


class SamplingBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Fields that chat and text completion share. None means: not given."""

    model: str | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    banned_token_ids: list[int] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    seed: int | None = None
    prompt_logprobs: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    priority: int | None = None
    cache_salt: str | None = None
    kv_class: KVClass | None = None
    return_token_ids: bool | None = None
    user: str | None = None  # named by OpenAI, without effect here

    def sampling_fields(self) -> dict[str, Any]:
        """Keyword arguments of SamplingParams, given ones only."""
        if self.stream and self.prompt_logprobs is not None:
            raise InvalidRequest("prompt_logprobs", "is not told in streams: leave stream out")
        check_bounds(self)
        given = {name: getattr(self, name) for name in PLAIN_FIELDS if getattr(self, name) is not None}
        if isinstance(self.stop, list):
            given["stop"] = stop_texts("stop", self.stop)
        return given

    def prompt_fields(self) -> dict[str, Any]:
        """``priority``, ``cache_salt`` and ``kv_class`` of a prompt."""
        if self.priority is not None and self.priority not in INT32:
            raise InvalidRequest("priority", f"must fit 32 bits, got {self.priority}")
        if self.cache_salt is not None and len(self.cache_salt) > MAX_SALT_CHARS:
            raise InvalidRequest("cache_salt", f"at most {MAX_SALT_CHARS} characters, got {len(self.cache_salt)}")
        return {"priority": self.priority or 0, "cache_salt": self.cache_salt or "", "kv_class": self.kv_class or CHAT}

    @property
    def streams(self) -> bool:
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest("stream_options", "is for streams: set stream to true")
        return bool(self.stream)

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with a chunk of usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)


def check_bounds(body: Any) -> None:
    """OpenAI's own, in its protocols: the engine would take more, and a slip would cost an answer of noise."""
    for name, (low, high) in OPENAI_BOUNDS.items():
        if (value := getattr(body, name, None)) is not None:
            plain.real(name, value, low, high)


def most_tokens(field: str, value: int | None) -> int | None:
    """``max_tokens`` by a protocol's own name. Raises InvalidRequest naming that."""
    return None if value is None else plain.whole(field, value, 1, plain.INT32_MAX)


def stop_texts(field: str, stops: list[str] | None) -> tuple[str, ...] | None:
    """Likewise for the stop strings."""
    if stops is not None and len(stops) > MAX_STOPS:
        raise InvalidRequest(field, f"at most {MAX_STOPS} stop strings, got {len(stops)}")
    if stops is not None and not all(stops):
        raise InvalidRequest(field, "must hold non-empty texts")
    return tuple(stops) if stops else None


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """``include_usage``: one more chunk at the end, with usage and no choices."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None  # hides lengths from listeners; nothing is padded here


PLAIN_FIELDS = tuple(name for name in SamplingBody.__struct_fields__ if name in SamplingParams.__struct_fields__)

"""What one request may ask of everybody: sizes times choices, each bound with its last good value and its first bad."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from headrace.api.http import extent
from headrace.api.http.extent import check_extent
from headrace.api.prompts import Prepared, Preparer
from headrace.contract.errors import InvalidRequest
from headrace.contract.picture import Picture
from headrace.contract.request import SamplingParams, StructuredOutputs

BIASES = dict.fromkeys(range(2**15), 1.0)


def prepared(prompt_len: int = 1, **fields: Any) -> Prepared:
    sampling = SamplingParams(**{"max_tokens": 1} | fields)
    fresh = Preparer(None, 50_000, 4096).prepare([5] * prompt_len, SamplingParams(n=sampling.n))
    return Prepared(fresh.request_id, None, fresh.token_ids, sampling, fresh.requests)


@pytest.mark.parametrize(
    ("field", "good", "bad"),
    [
        ("stop", {"stop": ["ab"] * 64}, {"stop": ["ab"] * 65}),
        ("stop", {"stop": "a" * 4096, "n": 64}, {"stop": "a" * 4097, "n": 64}),
        ("logit_bias", {"logit_bias": BIASES, "n": 64}, {"logit_bias": BIASES, "n": 65}),
        ("allowed_token_ids", {"allowed_token_ids": [7] * 2**15}, {"allowed_token_ids": [7] * 2**15, "n": 65}),
        ("banned_token_ids", {"banned_token_ids": [7] * 9}, {"banned_token_ids": [7] * 2**15, "n": 65}),
        ("stop_token_ids", {"stop_token_ids": [7] * 9}, {"stop_token_ids": [7] * 2**15, "n": 65}),
        ("logprobs", {"logprobs": 1024, "n": 4}, {"logprobs": 1024, "n": 5}),
        ("logprobs", {"logprobs": 64, "n": 8, "max_tokens": 2**11}, {"logprobs": 64, "n": 8, "max_tokens": 2**11 + 1}),
        ("prompt_logprobs", {"prompt_logprobs": 1024, "prompt_len": 256}, {"prompt_logprobs": 1024, "prompt_len": 257}),
    ],
)  # fmt: skip
def test_a_size_is_bounded_times_what_multiplies_it(field: str, good: dict[str, Any], bad: dict[str, Any]) -> None:
    check_extent([prepared(**good)])
    with pytest.raises(InvalidRequest) as refusal:
        check_extent([prepared(**bad)])
    assert refusal.value.field == field


def test_prompts_multiply_as_choices_do() -> None:
    check_extent([prepared(logprobs=1024)] * 4)
    with pytest.raises(InvalidRequest, match="logprobs"):
        check_extent([prepared(logprobs=1024)] * 5)
    with pytest.raises(InvalidRequest, match="prompt_logprobs"):
        check_extent([prepared(prompt_len=256, prompt_logprobs=1024)] * 2)


def test_a_constraint_counts_whole_under_the_name_it_came_by(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extent, "MAX_CONSTRAINT_BYTES", 1000)
    wanted = StructuredOutputs(json={"type": "string", "description": "x" * 300}, field="response_format")
    check_extent([prepared(structured_outputs=wanted, n=2)])
    with pytest.raises(InvalidRequest) as refusal:
        check_extent([prepared(structured_outputs=wanted, n=3)])
    assert refusal.value.field == "response_format"


@pytest.mark.parametrize(("size", "choices"), [(2**27, 1), (2**21, 64)])
def test_every_choice_travels_with_all_pictures(size: int, choices: int) -> None:
    check_extent([pictured(size, choices)])
    with pytest.raises(InvalidRequest, match=r"images: .* bytes of pixels, over all choices"):
        check_extent([pictured(size + 1, choices)])


def pictured(size: int, choices: int) -> Prepared:
    """``size`` bytes of pixels, which nobody looks at."""
    shown = Picture(start=0, kinds=b"", grid=(1, 1), pixels=bytes(size), id="")
    made = prepared(n=choices)
    requests = [msgspec.structs.replace(one, pictures=(shown,)) for one in made.requests]
    return replace(made, requests=requests)

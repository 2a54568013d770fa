"""Speculation on real weights: the bits of plain decoding, exact and quantised; stop strings in accepted runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headrace import LLM, SamplingParams
from headrace.lab.bench.speculation import workloads

pytestmark = pytest.mark.model

SETTINGS: dict[str, Any] = {"kv_memory": 128 << 20, "max_model_len": 2048}


@pytest.fixture(scope="module", params=["auto", "float32"])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[LLM, LLM]]:
    drafts = {"speculation": "suffix", "speculation_guard": False}
    with (
        LLM(dtype=request.param, **SETTINGS) as plain,
        LLM(dtype=request.param, **SETTINGS, **drafts) as drafted,
    ):
        yield plain, drafted


def answers(llm: LLM, params: list[SamplingParams]) -> list[Any]:
    prompts = [{"prompt_token_ids": ids} for ids in workloads(llm).values()]
    outputs = [o for p in params for o in llm.generate(prompts, p)]
    return [(c.token_ids, c.text, c.logprobs, c.finish_reason, c.stop_reason) for o in outputs for c in o.outputs]


def test_greedy_and_seeded_answers_are_the_same_to_the_bit(pair: tuple[LLM, LLM]) -> None:
    params = [
        SamplingParams(max_tokens=40, temperature=0.0, logprobs=2, ignore_eos=True),
        SamplingParams(max_tokens=24, temperature=0.8, top_p=0.9, seed=11, logprobs=1, repetition_penalty=1.1),
    ]
    plain, drafted = (answers(llm, params) for llm in pair)
    assert plain == drafted
    stats = pair[1].engine.stats
    assert 40 < stats.accepted_drafts < stats.verified_drafts


def test_k32_a_stop_string_completed_inside_an_accepted_run(pair: tuple[LLM, LLM]) -> None:
    """The copied listing holds these texts well before the limit; everything is cut at the same token."""
    params = [
        SamplingParams(max_tokens=60, temperature=0.0, stop=stop, logprobs=0, include_stop_str_in_output=included)
        for stop in ("deposit", "self.balance =", "\n\n")
        for included in (False, True)
    ]
    plain, drafted = (answers(llm, params) for llm in pair)
    assert plain == drafted
    assert {reason for *_, reason in plain} >= {"deposit", "self.balance ="}

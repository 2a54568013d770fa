"""The golden V4.1 checkpoint as a user loads it: from its folder, by ``LLM``, with its own tokenizer."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import tiny_models
from v41_data import VARIANTS, folder, goldens

from headrace import LLM, SamplingParams
from headrace.api import launch
from headrace.api.text.engram_map import engram_map
from headrace.contract.errors import ConfigError


@pytest.mark.parametrize("variant", VARIANTS)
def test_prompt_logprobs_and_generation(variant: str) -> None:
    g = goldens(variant)
    ids, logits = g.ids("p1"), g["p1.logits"]
    with LLM(str(folder(variant)), dtype="float32", max_model_len=256, kv_memory=64 << 20) as llm:
        params = SamplingParams(temperature=0, max_tokens=16, prompt_logprobs=0, ignore_eos=True)
        [output] = llm.generate({"prompt_token_ids": ids}, params)
        [text] = llm.generate("The library has many old books", SamplingParams(temperature=0, max_tokens=4))
    assert text.outputs[0].token_ids
    safe = g.stated["tensors"]["p1.greedy_ids"]["leading_tokens_with_margin_over_twice_the_disagreement"]
    assert list(output.outputs[0].token_ids[:safe]) == g["p1.greedy_ids"][:safe].tolist()
    stated = logits.log_softmax(1)
    assert output.prompt_logprobs is not None
    differences = sorted(
        abs(entry[token].logprob - float(stated[at, token]))
        for at, (token, entry) in enumerate(zip(ids[1:], output.prompt_logprobs[1:]))
        if entry is not None
    )
    assert len(differences) == len(ids) - 1
    assert differences[len(differences) // 2] <= g.median_limit("p1.logits")


def test_the_rounded_mode_is_what_auto_means() -> None:
    with LLM(str(folder()), max_model_len=256, kv_memory=64 << 20) as llm:
        [output] = llm.generate("Once upon a time", SamplingParams(temperature=0, max_tokens=4, ignore_eos=True))
    assert len(output.outputs[0].token_ids) == 4


def test_blocks_that_would_cut_a_pair_are_refused() -> None:
    with pytest.raises(ConfigError, match="block_size"):
        LLM(str(folder()), block_size=7)


def test_drafts_are_taken_back_up_to_what_the_model_can_and_more_are_refused() -> None:
    settings = {"dtype": "float32", "max_model_len": 256, "kv_memory": 64 << 20}
    prompt, params = "one two three one two three one two", SamplingParams(temperature=0, max_tokens=16)
    with LLM(str(folder()), **settings) as llm:
        [plain] = llm.generate(prompt, params)
    with LLM(str(folder()), speculation="ngram", max_drafts=11, **settings) as llm:
        [drafted] = llm.generate(prompt, params)
    assert drafted.outputs[0].token_ids == plain.outputs[0].token_ids
    with pytest.raises(ConfigError, match=r"max_drafts: .*11 drafts"):
        LLM(str(folder()), speculation="ngram", max_drafts=12, **settings)


def test_its_own_heads_draft_and_greedy_tokens_stay() -> None:
    """With the planner: its cost is measured on scratch records, and drafts that are not worth their rows are left
    out."""
    settings = {"dtype": "float32", "max_model_len": 256, "kv_memory": 64 << 20}
    prompts, params = ["The library has many old books", "one two"], SamplingParams(temperature=0, max_tokens=12)
    with LLM(str(folder()), **settings) as llm:
        plain = [o.outputs[0].token_ids for o in llm.generate(prompts, params)]
    for guard in (True, False):
        with LLM(str(folder()), speculation="draft_heads", speculation_guard=guard, **settings) as llm:
            assert [o.outputs[0].token_ids for o in llm.generate(prompts, params)] == plain
            assert guard or llm.stats.verified_drafts > 0


def test_heads_are_refused_where_there_are_none(tmp_path: Path) -> None:
    config = dict(tiny_models.CONFIGS["llama"])
    path = tiny_models.write_directory(tmp_path, config, tiny_models.random_tensors(config))
    with pytest.raises(ConfigError, match="draft heads"):
        LLM(str(path), speculation="draft_heads", kv_memory=64 << 20)


def test_a_tokenizer_that_reads_otherwise_finds_nothing_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What Engram hashes shapes the KV, and comes from the tokenizer alone: the weights are the same."""
    prompt = {"prompt_token_ids": random.Random(3).choices(range(1000), k=200)}
    params = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)

    def found() -> int:
        settings = {"dtype": "float32", "max_model_len": 256, "kv_memory": 64 << 20}
        with LLM(str(folder()), kv_store=str(tmp_path / "kv"), **settings) as llm:
            [output] = llm.generate(prompt, params)
        return int(output.num_cached_tokens)

    assert [found(), found()] == [0, 128]
    monkeypatch.setattr(launch, "engram_map", lambda tokenizer: np.flip(engram_map(tokenizer)).copy())
    assert found() == 0

"""Settings of speculation: what is refused, and under which name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny_models

from headrace import LLM, SamplingParams
from headrace.config import resolve
from headrace.contract.errors import ConfigError


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"speculation": "guess"}, "speculation"),
        ({"speculation": "ngram", "max_drafts": 0}, "max_drafts"),
        ({"speculation": "ngram", "max_drafts": 65}, "max_drafts"),
        ({"speculation": "ngram", "max_drafts": 8, "token_budget": 8}, "max_drafts"),
        ({"speculation": "ngram", "min_match": 5, "max_match": 4}, "min_match"),
        ({"speculation": "ngram", "max_match": 33}, "max_match"),
        ({"speculation": "suffix", "suffix_memory": -1}, "suffix_memory"),
        ({"speculation": "draft_model"}, "draft_model"),
        ({"speculation": "ngram", "draft_model": "smollm2-135m-instruct"}, "draft_model"),
        ({"speculation": "self", "acceptance": "always"}, "acceptance"),
        ({"speculation": "self", "draft_layers": 0}, "draft_layers"),
        ({"cost_lifetime_s": -1.0}, "cost_lifetime_s"),
    ],
)
def test_what_cannot_work_is_refused_by_name(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(settings)
    assert caught.value.field == field


def tiny(folder: Path, **changes: Any) -> str:
    config = tiny_models.CONFIGS["llama"] | changes
    return str(tiny_models.write_directory(folder, config, tiny_models.random_tensors(config)))


def open_tiny(folder: Path, **settings: Any) -> LLM:
    return LLM(tiny(folder), dtype="float32", kv_memory=1 << 20, **settings)


@pytest.mark.parametrize("method", ["ngram", "suffix", "self", "draft_model"])
@pytest.mark.parametrize("guard", [False, True])
def test_every_method_gives_the_tokens_of_plain_decoding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, guard: bool
) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    own = {"draft_model": tiny(tmp_path / "draft", num_hidden_layers=1)} if method == "draft_model" else {}
    prompts = [[1, 2, 3, 1, 2, 3, 1, 2], [7, 8, 9]]
    params = [SamplingParams(max_tokens=30, temperature=t, seed=4, logprobs=1) for t in (0.0, 0.9)]
    answers = []
    for settings in ({}, {"speculation": method, "speculation_guard": guard, "acceptance": "exact", **own}):
        with open_tiny(tmp_path / "model", **settings) as llm:
            outputs = llm.generate(prompts, params)
            answers.append([(o.outputs[0].token_ids, o.outputs[0].logprobs) for o in outputs])
            verified = llm.engine.stats.verified_drafts
    assert answers[0] == answers[1]
    assert guard or verified > 0
    assert bool(list((tmp_path / "cache").rglob("cost-*.json"))) == guard


def test_a_draft_model_of_another_vocabulary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="same vocabulary") as caught:
        open_tiny(tmp_path / "a", speculation="draft_model", draft_model=tiny(tmp_path / "b", vocab_size=62))
    assert caught.value.field == "draft_model"


def test_as_many_draft_layers_as_the_model_has_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        open_tiny(tmp_path, speculation="self", draft_layers=3)
    assert caught.value.field == "draft_layers"

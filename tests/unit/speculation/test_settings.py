"""Settings of speculation: what is refused, and under which name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny_models
import v41_config
from typer.testing import CliRunner

from headrace import LLM, SamplingParams
from headrace.cli.main import build_app
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


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"speculation": "draft_model"}, "draft_model: is missing"),
        ({"speculation": "ngram", "draft_model": "m"}, "for speculation draft_model, not for ngram"),
        ({"draft_model": "m"}, "for speculation draft_model, not for none"),
    ],
)
def test_a_draft_model_that_is_missing_or_too_much_is_told_apart(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        resolve(settings)


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


def v41(folder: Path) -> str:
    """A configuration is all that is read of it."""
    folder.mkdir()
    (folder / "v41.json").write_text(json.dumps(v41_config.changed()))
    return f"dummy:{folder / 'v41.json'}"


@pytest.mark.parametrize(
    ("own", "settings", "words"),
    [
        ({}, {"speculation": "draft_heads"}, "^speculation: draft_heads needs a model with draft heads"),
        ({"vocab_size": 62}, {"speculation": "draft_model"}, "^draft_model: .* has 61 ids, the model 62"),
        ({"vocab_size": 62}, {"draft_model": "v41"}, "^draft_model: .* cannot draft for another model"),
    ],
)
def test_what_cannot_draft_is_refused_before_any_weight_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: dict[str, Any], settings: dict[str, Any], words: str
) -> None:
    def read(*_: object, **__: object) -> None:
        raise AssertionError("weights were read")

    monkeypatch.setattr("headrace.api.launch.load_model", read)
    if "speculation" not in settings or settings["speculation"] == "draft_model":
        draft = v41(tmp_path / "draft") if "draft_model" in settings else tiny(tmp_path / "draft")
        settings = {"speculation": "draft_model", "draft_model": draft}
    with pytest.raises(ConfigError, match=words):
        LLM(tiny(tmp_path / "model", **own), kv_memory=1 << 20, **settings)


def test_what_the_deterministic_mode_changed_is_noted_for_split_too(tmp_path: Path) -> None:
    settings = {"deterministic": True, "speculation": "self", "max_model_len": 64, "kv_store": "off"}
    notes = []
    for discipline in ("mixed", "split"):
        with open_tiny(tmp_path / "model", discipline=discipline, **settings) as llm:
            notes.append(llm.notes)
    assert any("sets acceptance" in words for words in notes[0])
    assert notes[0] == notes[1]


def test_an_unknown_draft_model_is_bad_input() -> None:
    for command in ("run", "serve"):
        arguments = [command, *(["Hello"] if command == "run" else []), "--speculation", "draft_model"]
        result = CliRunner().invoke(build_app(), [*arguments, "--draft-model", "smollm2-135m-instruktion"])
        assert result.exit_code == 2
        assert "draft_model: there is no model" in result.stderr
        assert "Did you mean smollm2-135m-instruct" in result.stderr


def test_as_many_draft_layers_as_the_model_has_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        open_tiny(tmp_path, speculation="self", draft_layers=3)
    assert caught.value.field == "draft_layers"

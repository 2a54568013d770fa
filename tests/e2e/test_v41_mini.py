"""The small trained member, by its name: it has learnt something, its own heads' drafts are accepted, and greedy tokens
stay what they are without them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from headrace import LLM, SamplingParams
from headrace.cli.model_facts import model_facts
from headrace.contract.errors import ConfigError
from headrace.models.sources import list_models, resolve_model

NAME = "v41-mini"
# In the manner of what it has read, and not in it.
TEXT = "she had found her way into that beautiful garden, and the Queen said to the King, and they all went on together"
GREEDY = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
SETTINGS = {"dtype": "float32", "max_model_len": 256, "kv_memory": 64 << 20}


def test_it_is_there_without_fetching() -> None:
    source = resolve_model(NAME, offline=True)
    assert source.tokenizer_path == source.path
    [listed] = [m for m in list_models() if m.name == NAME]
    assert listed.path == source.path
    assert listed.size_bytes < 20_000_000


def test_what_is_shown_of_it_is_what_is_read(tmp_path: Path) -> None:
    """Another checkpoint in a folder below is not part of it."""
    source = resolve_model(NAME, offline=True).path
    for file in source.iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "model.safetensors").symlink_to(source / "model.safetensors")
    facts = model_facts(str(tmp_path))
    assert facts["size_bytes"] == (source / "model.safetensors").stat().st_size
    assert all(group["bytes_per_token"] or group["bytes_per_block"] for group in facts["kv"]["groups"])


def test_a_kv_dtype_that_would_change_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^kv_dtype: .*records in formats of its own"):
        LLM(NAME, kv_dtype="int8", **SETTINGS)


@pytest.fixture(scope="module")
def plain() -> tuple[list[int], float]:
    """Greedy ids after the text, and the text's mean logprob."""
    scored = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    with LLM(NAME, **SETTINGS) as llm:
        [score] = llm.generate(TEXT, scored)
        [output] = llm.generate(TEXT, GREEDY)
    found = [e[t].logprob for t, e in zip(score.prompt_token_ids, score.prompt_logprobs) if e is not None]
    return list(output.outputs[0].token_ids), sum(found) / len(found)


def test_it_knows_more_than_single_words(plain: tuple[list[int], float]) -> None:
    """A uniform guess over its vocabulary costs log 2048 nats a token; counting single tokens about 6.5."""
    assert plain[1] > -5.5 > -math.log(2048)


@pytest.mark.parametrize("guard", [True, False])
def test_its_own_drafts_are_accepted_and_change_nothing(plain: tuple[list[int], float], guard: bool) -> None:
    with LLM(NAME, speculation="draft_heads", speculation_guard=guard, **SETTINGS) as llm:
        [output] = llm.generate(TEXT, GREEDY)
        assert list(output.outputs[0].token_ids) == plain[0]
        assert guard or llm.stats.accepted_drafts > 0

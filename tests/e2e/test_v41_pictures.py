"""A picture in a prompt, through the engine: its rows come from the tower; chunks and caches change no bit; pictures
that differ never meet in a cache; a model without eyes says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_models
import torch
from paged_runner import PagedRunner
from v41_data import VARIANTS, folder, model

from headrace import LLM, SamplingParams
from headrace.api.pictures import expand
from headrace.contract.errors import ConfigError, InvalidRequest
from headrace.models.sources import resolve_model

SETTINGS: dict[str, Any] = {"dtype": "float32", "max_model_len": 256, "kv_memory": 64 << 20, "block_size": 8}
GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=0)
SCORED = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True, prompt_logprobs=0)
BEFORE, AFTER = [5, 17, 230, 88, 41, 7, 300, 12, 19], [44, 45, 46]


def noise(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (70, 112, 3), dtype=np.uint8)


def prompt(seed: int) -> dict[str, Any]:
    return {"prompt_token_ids": [*BEFORE, 1018, *AFTER], "images": [noise(seed)]}


def bits(output: Any) -> Any:
    [choice] = output.outputs
    return list(choice.token_ids), [[(k, v.logprob) for k, v in entry.items()] for entry in choice.logprobs or []]


@pytest.fixture(scope="module")
def cold() -> list[Any]:
    with LLM(str(folder()), prefix_caching=False, **SETTINGS) as llm:
        return [bits(llm.generate(prompt(seed), GREEDY)[0]) for seed in (1, 2)]


def test_rows_are_those_of_the_tower(cold: list[Any]) -> None:
    """Prompt logprobs of the engine against the model run by hand, and against other tokens in the picture's place."""
    of = model(VARIANTS[0])
    ids, [picture] = expand(of.eyes, prompt(1)["prompt_token_ids"], prompt(1)["images"])
    with torch.inference_mode():
        rows = of.embed(torch.tensor(ids, dtype=torch.int32))
        runner = PagedRunner(of, of.arithmetic.ops, 1, len(ids), block_size=8)
        placed = rows.index_copy(0, torch.arange(picture.start, picture.end), of.picture_rows(picture))
        logs = of.logits(of.run(of.begin(runner.context({0: ids})), placed)).log_softmax(1)
    with LLM(str(folder()), **SETTINGS) as llm:
        [seen] = llm.generate(prompt(1), SCORED)
        blind_ids = [5 if token == 1018 else token for token in ids]
        [blind] = llm.generate({"prompt_token_ids": blind_ids}, SCORED)
    found = [entry[token].logprob for token, entry in zip(ids[1:], seen.prompt_logprobs[1:])]
    others = [blind.prompt_logprobs[at][token].logprob for at, token in enumerate(ids) if at > picture.end]
    expected = [float(logs[at, token]) for at, token in enumerate(ids[1:])]
    assert found == pytest.approx(expected, abs=1e-4)
    assert max(abs(a - b) for a, b in zip(found[picture.end :], others, strict=True)) > 0.1
    assert cold[0] != cold[1]


@pytest.mark.parametrize("budget", [5, 16])
def test_chunks_that_cut_a_picture_change_nothing(cold: list[Any], budget: int) -> None:
    with LLM(str(folder()), token_budget=budget, max_seqs=2, **SETTINGS) as llm:
        assert [bits(o) for o in llm.generate([prompt(1), prompt(2)], GREEDY)] == cold


def test_only_the_same_picture_is_found_in_the_cache(cold: list[Any]) -> None:
    with LLM(str(folder()), **SETTINGS) as llm:
        first, second, again = (llm.generate(prompt(seed), GREEDY)[0] for seed in (1, 2, 1))
    assert [bits(o) for o in (first, second, again)] == [cold[0], cold[1], cold[0]]
    assert first.num_cached_tokens == 0
    assert second.num_cached_tokens == 8  # the text before it
    assert again.num_cached_tokens > len(BEFORE)


def test_drafts_by_heads_behind_a_picture(cold: list[Any]) -> None:
    with LLM(str(folder()), speculation="draft_heads", **SETTINGS) as llm:
        assert bits(llm.generate(prompt(1), GREEDY)[0])[0] == cold[0][0]


def test_a_conversation_shows_them_too() -> None:
    """Parts of a content, as arrays and as the server takes them, against the same prompt written by hand."""
    text, words = "<｜deepseek_image｜>\nWhat is it?", {"type": "text", "text": "What is it?"}
    part = {"type": "image", "image": noise(1)}
    with LLM("v41-mini", kv_memory=32 << 20, max_model_len=256) as llm:
        [expected] = llm.generate({"prompt": text, "images": [noise(1)]}, GREEDY)
        [found] = llm.chat([{"role": "user", "content": [part, words]}], GREEDY)
        assert bits(found) == bits(expected)
        for bad, field in (({"type": "image_url", "image_url": {"url": "http://x"}}, r"image_url"), ({"type": 5}, "")):
            with pytest.raises(InvalidRequest, match=rf"^messages\[0\]\.content\[1\]\.?{field}: "):
                llm.chat([{"role": "user", "content": [part, bad]}], GREEDY)


def test_a_place_holder_without_its_picture_is_refused() -> None:
    with LLM(str(folder()), **SETTINGS) as llm, pytest.raises(InvalidRequest, match=r"^prompt: .*id 1018.*images"):
        llm.generate({"prompt_token_ids": [*BEFORE, 1018, *AFTER]}, GREEDY)


def test_a_model_without_eyes_refuses_pictures(tmp_path: Path) -> None:
    config = dict(tiny_models.CONFIGS["llama"])
    path = tiny_models.write_directory(tmp_path, config, tiny_models.random_tensors(config))
    with (
        LLM(str(path), kv_memory=64 << 20) as llm,
        pytest.raises(InvalidRequest, match="no eyes"),
    ):
        llm.generate({"prompt_token_ids": [1, 2], "images": [noise(1)]})


def test_the_tokenizer_must_mean_the_same_token(tmp_path: Path) -> None:
    source = Path(resolve_model("v41-mini", offline=True).path)
    for file in source.iterdir():
        if file.name != "config.json":
            (tmp_path / file.name).symlink_to(file)
    config = json.loads((source / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"image_token_id": 2045}))
    with pytest.raises(ConfigError, match=r"^image_token_id: 2045, but the tokenizer has 2046"):
        LLM(str(tmp_path), kv_memory=32 << 20)

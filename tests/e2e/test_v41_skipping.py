"""``prefill_keep``: prompts whose decoder half is computed near their end only, as a user asks for it. How steps are
cut changes no bit; enough kept tokens are exact; what needs skipped rows is refused."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import tiny_models
import torch
from paged_runner import PagedRunner
from v41_config import dummy_model, narrow

from headrace import LLM, SamplingParams
from headrace.api.launch import DUMMY_SEED
from headrace.api.role_service import open_role
from headrace.config import resolve
from headrace.contract.errors import ConfigError, InvalidRequest
from headrace.models.deepseek_v41.truncation import COMPACT, Truncation, exact_keep

KEEP = 30  # of a window of 16 and the twelve positions that decoding may go back by, and two
SETTINGS: dict[str, Any] = {"dtype": "float32", "kv_memory": 64 << 20, "max_model_len": 256, "block_size": 8}
GREEDY = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True, logprobs=0)


def prompts() -> list[list[int]]:
    rng = random.Random(5)
    return [[rng.randrange(300) for _ in range(n)] for n in (150, 23, 97)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("v41") / "config.json"
    path.write_text(json.dumps(narrow()))
    return f"dummy:{path}"


def answers(model: str, asked: list[list[int]] | None = None, **settings: Any) -> list[Any]:
    with LLM(model, **SETTINGS | settings) as llm:
        return [bits(o) for o in llm.generate([{"prompt_token_ids": ids} for ids in asked or prompts()], GREEDY)]


def bits(output: Any) -> Any:
    [choice] = output.outputs
    return list(choice.token_ids), [[(k, v.logprob) for k, v in entry.items()] for entry in choice.logprobs]


@pytest.fixture(scope="module")
def whole(model: str) -> list[Any]:
    return answers(model)


@pytest.fixture(scope="module")
def skipped(model: str) -> list[Any]:
    return [answers(model, [ids], prefill_keep=KEEP, overlap=False)[0] for ids in prompts()]


def test_enough_kept_tokens_are_exact_and_few_are_not(model: str, whole: list[Any], skipped: list[Any]) -> None:
    assert answers(model, prefill_keep=exact_keep(dummy_model().config)) == whole
    assert [a == b for a, b in zip(skipped, whole)] == [False, True, False]  # the second is shorter than what is kept


@pytest.mark.parametrize("budget", [7, 33, 512])
def test_batches_and_chunks_change_no_bit(model: str, skipped: list[Any], budget: int) -> None:
    assert answers(model, prefill_keep=KEEP, token_budget=budget, max_seqs=3) == skipped


def test_the_first_token_is_that_of_the_model_by_hand(skipped: list[Any]) -> None:
    of, [ids, *_] = dummy_model(seed=DUMMY_SEED), prompts()
    of.truncate(Truncation(COMPACT, KEEP))
    with torch.inference_mode():
        [logits] = PagedRunner(of, of.arithmetic.ops, 1, len(ids), block_size=8).logits({0: ids})
    [(token, logprob)] = skipped[0][1][0]
    assert token == int(logits[-1].argmax())
    assert logprob == pytest.approx(float(logits[-1].log_softmax(0)[token]), abs=1e-5)


def test_guesses_stand_and_nothing_is_found_again(model: str, skipped: list[Any]) -> None:
    settings = {**SETTINGS, "prefill_keep": KEEP, "speculation": "ngram", "speculation_guard": False}
    with LLM(model, **settings) as llm:
        twice = [llm.generate({"prompt_token_ids": prompts()[0]}, GREEDY)[0] for _ in range(2)]
    assert [bits(output) for output in twice] == [skipped[0]] * 2
    assert [output.num_cached_tokens for output in twice] == [0, 0]


def test_thrown_out_and_computed_again(model: str) -> None:
    """A pool for little more than one: the others come to their ends all the same."""
    tight = {"kv_memory": 1100 << 10, "max_model_len": 180, "full_sequence_must_fit": False, "watermark": 0.0}
    longer = SamplingParams(temperature=0, max_tokens=90, ignore_eos=True)
    with LLM(model, **SETTINGS | tight, prefill_keep=KEEP) as llm:
        found = llm.generate([{"prompt_token_ids": ids[:50]} for ids in prompts() * 2], longer)
        assert llm.stats.preemptions > 0
    assert [len(output.outputs[0].token_ids) for output in found] == [90] * 6


def test_prompt_logprobs_are_refused(model: str) -> None:
    with LLM(model, prefill_keep=KEEP, **SETTINGS) as llm, pytest.raises(InvalidRequest, match=r"^prompt_logprobs: "):
        llm.generate({"prompt_token_ids": [1, 2]}, SamplingParams(prompt_logprobs=0))


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"prefill_keep": 27}, "prefill_keep"),
        ({"prefill_keep": 0}, "prefill_keep"),
        ({"discipline": "split"}, "prefill_keep"),
        ({"kv_store": "somewhere"}, "prefill_keep"),
        ({"deterministic": True}, "prefill_keep"),
        ({"speculation": "draft_heads"}, "speculation"),
        (
            {"expert_parallel": True, "discipline": "voted", "data_parallel_size": 2},
            "prefill_keep",
        ),
    ],
)
def test_what_cannot_work_is_refused(model: str, settings: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=f"^{field}: "):
        LLM(model, **SETTINGS | {"prefill_keep": KEEP} | settings)


def test_roles_and_other_models_refuse_it(tmp_path: Path) -> None:
    config = dict(tiny_models.CONFIGS["llama"])
    path = str(tiny_models.write_directory(tmp_path, config, tiny_models.random_tensors(config)))
    with pytest.raises(ConfigError, match=r"^prefill_keep: this model computes every row"):
        LLM(path, kv_memory=64 << 20, prefill_keep=KEEP)
    settings = resolve({"model": path, "prefill_keep": KEEP})
    with pytest.raises(ConfigError, match=r"^prefill_keep: does not go with a role"):
        open_role(settings, "prompt", "tcp://127.0.0.1:1", "tcp://127.0.0.1:2", None)

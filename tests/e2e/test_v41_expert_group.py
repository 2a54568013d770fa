"""A user's group that shares the small trained model's experts: the tokens of one engine, figures, refusals."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from harness import load_tiny

from headrace import LLM, SamplingParams
from headrace.contract.errors import ConfigError
from headrace.kernels.resolve import resolve_ops
from headrace.models.registry import load_model
from headrace.models.weights import open_checkpoint
from headrace.parallel.eplb.balancer import ExpertShare

PROMPTS = ["The Queen said to Alice", "Call me", "It was the best of", "Once upon a time"]
SETTINGS: dict[str, Any] = {"model": "v41-mini", "kv_memory": 64 << 20, "num_threads": 2}
SPREAD: dict[str, Any] = {"data_parallel_size": 2, "discipline": "voted", "expert_parallel": True}


def answers(llm: LLM) -> list[Any]:
    params = [SamplingParams(temperature=t, seed=3, max_tokens=40, logprobs=1, ignore_eos=True) for t in (0, 1, 0, 1)]
    return [(o.outputs[0].token_ids, o.outputs[0].logprobs) for o in llm.generate(PROMPTS, params)]


def moved(group: LLM) -> bool:
    """Every rank has computed rows, and some expert has moved."""
    loads = [stats.experts for stats in group.engine.client.rank_stats]
    return all(load.rows for load in loads) and any(load.moves for load in loads)


def test_a_group_that_shares_experts_equals_one_engine_to_the_bit() -> None:
    with LLM(**SETTINGS) as alone:
        expected = answers(alone)
    with LLM(**SETTINGS, **SPREAD, rebalance_interval=8, rebalance_window=8) as group:
        assert answers(group) == expected
        deadline = time.monotonic() + 60  # what ranks report is a little older than their answers
        while not (moved(group) or time.monotonic() > deadline):
            time.sleep(0.02)
        assert moved(group), "no expert moved while these requests ran"


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"discipline": "mixed"}, "expert_parallel"),
        ({"data_parallel_size": 1}, "expert_parallel"),
        ({"speculation": "ngram"}, "expert_parallel"),
        ({"rebalance_interval": 10, "rebalance_window": 11}, "rebalance_window"),
        ({"rebalance_interval": -1}, "rebalance_interval"),
        ({"rebalance_window": 0}, "rebalance_window"),
        ({"expert_spares": -1}, "expert_spares"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_loaded(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=f"^{field}: "):
        LLM("/nowhere", **SPREAD | settings)


def test_a_model_without_experts_has_none_to_share(tmp_path: Path) -> None:
    load_tiny("llama", tmp_path)
    ops = resolve_ops("cpu")
    with pytest.raises(ConfigError, match=r"^expert_parallel: LlamaForCausalLM has no experts that ranks could share$"):
        load_model(open_checkpoint(tmp_path / "llama"), ops, share=ExpertShare(0, 2, 1))

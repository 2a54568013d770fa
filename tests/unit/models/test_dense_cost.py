"""What a dense step costs where some layers see a window only."""

from __future__ import annotations

from dataclasses import replace

from tiny_models import CONFIGS

from headrace.contract.stats import BoundedPairs, EngineStats
from headrace.models.dense.config import derive
from headrace.models.dense.forward import step_cost


def test_a_layer_with_a_window_sees_no_more_than_that() -> None:
    config = derive("Gemma3ForCausalLM", CONFIGS["gemma3"])
    config = replace(config, windows=(16, 0, 16)[: config.num_layers], num_layers=3)
    pair = 4 * config.num_heads * config.head_dim  # a score and a value, two operations each per column
    cost = step_cost(config)
    assert (cost.attended, cost.bounded) == (pair, [BoundedPairs(16, 2 * pair)])
    long = EngineStats(scheduled_tokens=2, attended=1000)
    assert cost.of(long) == 2 * cost.token + 1000 * pair + 2 * 16 * 2 * pair

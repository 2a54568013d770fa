"""What a V4.1 step costs, against the checkpoint's own table of matrices and against a count by hand."""

from __future__ import annotations

import math

from v41_config import CONFIG, text

from headrace.contract.stats import BoundedPairs, EngineStats
from headrace.models.deepseek_v41.config import derive_v41
from headrace.models.deepseek_v41.cost import step_cost
from headrace.models.deepseek_v41.tensor_table import tensor_table

HIDDEN, HEADS, HEAD, CHOSEN, EXPERTS = 256, 8, 512, 2, 8


def test_a_token_meets_every_matrix_of_its_layers_once() -> None:
    """A product per stored element, but for experts that were not chosen and what is computed once per pair."""
    config, total = derive_v41(CONFIG), 0.0
    for name, stored in tensor_table(config, (1, 1)).items():
        if not name.startswith("layers.") or "_scale" in name or name.endswith((".scale", "_base")):
            continue
        if len(stored.shape) < 2 or "engram.q_" in name or "engram.k_" in name or "engram.embed" in name:
            continue
        elements = float(math.prod(stored.shape)) * (2 if stored.kind == "I8" else 1)
        elements *= CHOSEN / EXPERTS if ".experts." in name else 1
        paired = config.topology.ratios[int(name.split(".")[1])] == 2
        total += elements / 2 if "indexer.wk" in name and paired else elements
    assert step_cost(config).token == 2 * total


def test_what_grows_with_the_context_and_what_does_not_by_hand() -> None:
    cost = step_cost(derive_v41(CONFIG))
    score = 2 * 16 * 128  # index heads of 128: operations per key
    assert cost.sampled == 2 * HIDDEN * 2048
    assert cost.attended == 2 * (score // 2) + score  # layers 1 and 3 score pairs, layer 4 every position
    see = 4 * HEADS * HEAD
    assert cost.bounded == [
        BoundedPairs(128, 8 * see),  # the window, in all eight layers
        BoundedPairs(64, 4 * see),  # 64 entries of single positions in four layers
        BoundedPairs(2 * 64, 3 * see // 2),  # 64 entries of pairs in three
        BoundedPairs(64 * 8, score),  # layer 6 scores 64 blocks of 8
    ]


def test_bounded_pairs_are_counted_up_to_their_bound() -> None:
    cost = step_cost(derive_v41(text(candidate_source_layer_id=None)))
    assert cost.attended == 2 * 2048 + 2 * 4096  # then layer 6 scores everything too
    short, long = EngineStats(scheduled_tokens=10, attended=55), EngineStats(scheduled_tokens=10, attended=50_000)
    bounded = {
        name: cost.of(stats) - 10 * cost.token - stats.attended * cost.attended
        for name, stats in (("short", short), ("long", long))
    }
    see = 4 * HEADS * HEAD
    assert bounded["short"] == 55 * (8 * see + 4 * see + 3 * see // 2)
    assert bounded["long"] == 10 * (128 * 8 * see + 64 * 4 * see + 128 * 3 * see // 2)

"""What is counted of drafts, as vLLM's names ask for it: sequences with drafts, and acceptance by place."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from headrace.api.http.engine_metrics import put_engine
from headrace.engine.stats import StepCounts
from headrace.obs.metrics import Metrics

CORE: Any = SimpleNamespace(
    num_running=0,
    num_waiting=0,
    num_blocks=0,
    num_used_blocks=0,
    prefix_queries=0,
    prefix_hits=0,
    num_preemptions=0,
)


def test_drafts_are_counted_by_sequence_and_by_place() -> None:
    counts = StepCounts(CORE)
    assert counts.snapshot().accepted_at == []
    counts.speculated(np.array([3, 0, 2]), np.array([2, 0, 0]))
    counts.speculated(np.array([3, 3]), np.array([3, 1]))
    counts.speculated(np.array([], np.int64), np.array([], np.int64))  # a step in company of other ranks
    stats, metrics = counts.snapshot(), Metrics()
    assert (stats.verified_drafts, stats.accepted_drafts, stats.drafted_sequences) == (11, 6, 4)
    assert stats.accepted_at == [3, 2, 1]
    put_engine(metrics, stats, None)
    assert metrics.values["drafted_sequences"][()] == 4
    assert metrics.values["accepted_drafts_at"] == {("0",): 3, ("1",): 2, ("2",): 1}

"""Counts of engines that replace one another never fall, and gauges are the newest one's."""

from __future__ import annotations

from types import SimpleNamespace

from headrace.contract.stats import EngineStats, OverlapStats
from headrace.engine.succession import Succession


def engine(**stats: object) -> SimpleNamespace:
    return SimpleNamespace(stats=EngineStats(**stats))  # type: ignore[arg-type]


def test_counts_go_on_where_a_dead_engine_left_them() -> None:
    whole = Succession()
    first = engine(steps=5, sampled_tokens=9, running=3, used_blocks=7, overlap=OverlapStats(busy_ns=100))
    assert whole.stats(first) == first.stats
    first.stats = EngineStats()  # dead
    told = whole.stats(first)
    assert (told.steps, told.sampled_tokens, told.overlap.busy_ns) == (5, 9, 100)
    assert (told.running, told.used_blocks) == (0, 0)
    assert whole.stats(first) == told
    second = engine()
    assert whole.stats(second).steps == 5
    second.stats = EngineStats(steps=2, sampled_tokens=1, running=1, speculating=True)
    told = whole.stats(second)
    assert (told.steps, told.sampled_tokens, told.running, told.speculating) == (7, 10, 1, True)
    assert whole.stats(engine(steps=1)).steps == 8  # a third one, whose predecessor nobody saw die

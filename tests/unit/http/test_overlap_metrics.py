"""What overlap gains reaches the metrics page: from the engine's snapshot to the table's rows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec

from headrace.api.http.host import EngineHost
from headrace.contract.stats import EngineStats, OverlapStats, StepCost
from headrace.obs.export import Exporter
from headrace.obs.metrics import BUBBLE_SECONDS


def test_the_engine_s_bubbles_are_on_the_page() -> None:
    counts = [0] * (len(BUBBLE_SECONDS) + 1)
    counts[3], counts[-1] = 5, 2
    overlap = OverlapStats(busy_ns=4_000_000_000, bubble_ns=500_000_000, host_ns=2_000_000_000, bubble_counts=counts)
    wire = msgspec.msgpack.encode(EngineStats(steps=7, overlap=overlap))  # as from an engine in its own process
    stats = msgspec.msgpack.decode(wire, type=EngineStats)
    llm: Any = SimpleNamespace(client=SimpleNamespace(stats=stats, alive=True), step_cost=None)
    metrics = EngineHost(lambda: llm, ["m"]).refresh_metrics()
    seconds = {"device_busy_seconds": 4.0, "device_bubble_seconds": 0.5, "host_seconds": 2.0}
    seconds["step_busy_seconds"] = 4.5
    assert {name: metrics.values[name][()] for name in seconds} == seconds
    assert metrics.values["overlap_ratio"][()] == 0.75
    histogram = metrics.histograms["step_bubble_seconds"]
    assert (histogram.counts, histogram.sum) == (counts, 0.5)


def test_what_nobody_counts_is_left_out_and_a_group_that_is_gone_has_no_gauges() -> None:
    llm: Any = SimpleNamespace(client=SimpleNamespace(stats=EngineStats(steps=7), alive=True), step_cost=None)
    host = EngineHost(lambda: llm, ["m"])
    page = Exporter(host.refresh_metrics(), "m").text().decode()
    assert "\nheadrace_step_flops_total " not in page
    llm.step_cost = StepCost(token=3, attended=0, sampled=0)
    llm.client.rank_stats = [EngineStats(running=1), EngineStats(running=2)]
    page = Exporter(host.refresh_metrics(), "m").text().decode()
    assert "\nheadrace_step_flops_total 0.0" in page
    assert "\nheadrace_engines 2.0" in page
    assert 'headrace_rank_requests_running{rank="1"} 2.0' in page
    llm.client.rank_stats = []
    assert "headrace_rank_requests_running{" not in Exporter(host.refresh_metrics(), "m").text().decode()

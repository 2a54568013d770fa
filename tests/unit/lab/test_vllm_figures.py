"""A load's figures against those that vLLM 0.32.0's ``benchmarks.serve.calculate_metrics`` has for the same times."""

from __future__ import annotations

import pytest

from headrace.lab.bench.load.figures import Outcome, Slo
from headrace.lab.bench.load.run import fill
from headrace.lab.bench.report import Report

# When sent, when each event came, and how many tokens there were: one event may bring several.
REQUESTS: list[tuple[float, list[float], int]] = [
    (0.0, [0.119, 0.145, 0.328, 0.423], 4),
    (0.1, [0.282], 4),
    (0.2, [0.31, 0.348, 0.491, 0.599, 0.709], 8),
    (0.3, [0.346, 0.376, 0.561], 6),
    (0.4, [0.534], 1),
    (0.5, [0.652, 0.77, 0.83], 3),
    (0.6, [0.695, 0.839, 1.015, 1.158, 1.342], 8),
]
PROMPT, ELAPSED_S, SLO = 7, 4.0, Slo(ttft_s=0.3, tpot_s=0.1)
THEIRS = {
    "requests": 1.75,
    "output tokens": 8.5,
    "prompt and output tokens": 20.75,
    "goodput": 1.5,
    "failed requests": 1,
    "TTFT mean": 119.71428571428571,
    "TTFT std": 40.11666659601107,
    "TTFT p50": 119.0,
    "TTFT p90": 164.0,
    "TTFT p99": 180.2,
    "TPOT mean": 63.79365079365079,
    "TPOT std": 35.148982847486494,
    "TPOT p50": 73.0,
    "TPOT p90": 96.8809523809524,
    "TPOT p99": 100.88809523809523,
    "ITL mean": 116.2,
    "ITL std": 54.75789136431999,
    "ITL p50": 118.0,
    "ITL p90": 183.6,
    "ITL p99": 184.86,
    "E2E mean": 368.7142857142857,
    "E2E std": 194.57772173586156,
    "E2E p50": 330.0,
    "E2E p90": 602.2,
    "E2E p99": 728.02,
}


def test_they_are_equal() -> None:
    outcomes = [Outcome(sent, PROMPT, [(at, 1) for at in times], num_generated=n) for sent, times, n in REQUESTS]
    failed = Outcome(0.0, PROMPT)
    failed.error = "no"
    report = Report("serve", {})
    fill(report, [*outcomes, failed], ELAPSED_S, SLO)
    ours = {row.what: row.value.median for row in report.rows if row.value is not None}
    assert {what: ours[what] for what in THEIRS} == pytest.approx(THEIRS)

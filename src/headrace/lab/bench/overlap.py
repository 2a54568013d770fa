"""What overlap gains: the synchronous and the overlapped loop in turns, their ratio, and the device's bubbles in each.

Honest when the gain is nil: then it says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from headrace.api.llm import LLM
from headrace.config import EngineConfig
from headrace.contract.stats import EngineStats

from .engine_runs import Need, run_requests
from .engine_settings import engine_settings
from .pairs import Pair, Pairs
from .progress import now
from .report import Report
from .stats import spread
from .workload import draw_prompts

ROWS = (1, 8)
DEPTH = 32


def bench_overlap(config: EngineConfig, rows: Sequence[int] = ROWS, num_tokens: int = 128, repeats: int = 5) -> Report:
    """``rows``: streams at once."""
    report = Report("overlap", {"rows": list(rows), "num_tokens": num_tokens, "repeats": repeats})
    sync, overlapped = (replace(config, runtime=replace(config.runtime, overlap=on)) for on in (False, True))
    with Pairs(sync, overlapped) as pairs:
        settings = engine_settings(config) | {"model": pairs.first.model_name}
        settings.pop("overlap")  # that is compared
        report.settings |= settings
        Need("tokens", DEPTH, num_tokens + 1).check(pairs.first.max_model_len)
        for m in rows:
            now(f"decode, {_streams(m)}")
            before = pairs.first.stats, pairs.second.stats
            pair = pairs.measure(lambda llm, number, m=m: _rate(llm, number, m, num_tokens), repeats)  # type: ignore[misc]
            _add_rates(report, f"decode, {_streams(m)}", pair)
            add_bubbles(report, f"{_streams(m)}, synchronous", before[0], pairs.first.stats)
            add_bubbles(report, f"{_streams(m)}, overlapped", before[1], pairs.second.stats)
    return report.finish()


def _streams(m: int) -> str:
    return "1 stream" if m == 1 else f"{m} streams"


def _rate(llm: LLM, number: int, m: int, num_tokens: int) -> float:
    return run_requests(llm, draw_prompts(m, DEPTH, f"overlap {m} {number}"), num_tokens + 1).decode_rate


def _add_rates(report: Report, what: str, pair: Pair) -> None:
    report.add(f"{what}, synchronous", "tok/s", pair.first)
    report.add(f"{what}, overlapped", "tok/s", pair.second)
    report.add(f"{what}, overlapped over synchronous", "x", pair.ratio, note=pair.verdict)


def add_bubbles(report: Report, what: str, before: EngineStats, after: EngineStats) -> None:
    """Rows for the steps between two snapshots of one engine; their spread is not known, only the sum."""
    steps = sum(after.overlap.bubble_counts) - sum(before.overlap.bubble_counts)
    bubble = after.overlap.bubble_ns - before.overlap.bubble_ns
    host = after.overlap.host_ns - before.overlap.host_ns
    busy = after.overlap.busy_ns - before.overlap.busy_ns
    if steps <= 0 or host <= 0:
        report.add(f"{what}: device bubble per step", "us", None, note="no step was measured")
        return
    share = f"{bubble / (bubble + busy):.2%} of the device's time"
    report.add(f"{what}: device bubble per step", "us", spread([bubble / steps / 1e3]), note=share)
    report.add(f"{what}: overlap ratio", "", spread([max(0.0, 1 - bubble / host)]))

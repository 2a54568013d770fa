"""One stream's decode rate by depth, and T(M): what a decode step of M rows costs."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.config import EngineConfig
from headrace.contract.errors import ConfigError

from .engine_runs import Bench, Need, opened, run_requests, step_seconds
from .engine_settings import engine_settings
from .overlap import add_bubbles
from .progress import now
from .report import Curve, Report
from .stats import Spread, spread
from .workload import DECODE_DEPTHS, DECODE_TOKENS, STEP_ROWS, draw_prompt, draw_prompts

SPARE_TOKENS = 8  # what ``step_seconds`` generates beside the steps it times
READ_LIMIT = "weights of the file and KV read once per token"


def bench_latency(
    config: EngineConfig,
    depths: Sequence[int] = DECODE_DEPTHS,
    rows: Sequence[int] = STEP_ROWS,
    num_tokens: int = DECODE_TOKENS,
    repeats: int = 5,
) -> Report:
    """``rows`` are the M of T(M), at the first depth; each M is one run of ``num_tokens`` steps."""
    report = Report(
        "latency", {"depths": list(depths), "rows": list(rows), "num_tokens": num_tokens, "repeats": repeats}
    )
    if max(rows) > config.scheduler.max_seqs:
        raise ConfigError("rows", f"{max(rows)} are more than max_seqs, {config.scheduler.max_seqs}, lets run at once")
    with opened(config, Need("depths", depths[0], num_tokens + SPARE_TOKENS)) as bench:
        report.settings |= engine_settings(config) | {"model": bench.llm.model_name}
        for depth in depths:
            _decode_row(report, bench, depth, num_tokens, repeats)
        before = bench.llm.stats
        times = {m: step_time(bench, m, depths[0], num_tokens, repeats) for m in rows}
        after = bench.llm.stats
    for m, time in times.items():
        _step_row(report, bench, m, depths[0] + num_tokens // 2, time, (min(times), times[min(times)]))
    add_bubbles(report, "decode steps", before, after)
    points = [(float(m), time.median * 1e3) for m, time in times.items()]
    report.curves.append(Curve("T(M): one decode step", "rows M", "ms", points))
    return report.finish()


def _decode_row(report: Report, bench: Bench, depth: int, num_tokens: int, repeats: int) -> None:
    what = f"decode, one stream, {num_tokens} tokens at depth {depth}"
    if not bench.fits(depth + num_tokens + 1):
        report.add(what, "tok/s", None, note=f"the longest sequence is {bench.llm.max_model_len} tokens")
        return
    now(what)
    runs = [
        run_requests(bench.llm, [draw_prompt(depth, f"depth {depth} {run}")], num_tokens + 1)
        for run in range(-1, repeats)
    ]
    limit = 1 / bench.cost.step_seconds(bench.peaks, 1, depth + num_tokens // 2) if bench.cost else None
    rates = spread([run.decode_rate for run in runs[1:]])
    report.add(what, "tok/s", rates, limit=limit, limit_of=READ_LIMIT)


def step_time(bench: Bench, m: int, depth: int, num_steps: int, repeats: int) -> Spread:
    """Median step of each repeat; the spread is over repeats."""
    now(f"decode step, {m} rows")
    medians = []
    for run in range(-1, repeats):
        times = step_seconds(bench.llm, draw_prompts(m, depth, f"step {m} {run}"), num_steps)
        medians.append(spread(times).median)
    return spread(medians[1:])


def _step_row(report: Report, bench: Bench, m: int, context: int, time: Spread, least: tuple[int, Spread]) -> None:
    limit = bench.cost.step_seconds(bench.peaks, m, context) * 1e3 if bench.cost else None
    fewest, first = least
    note = f"{time.median / first.median:.2f} x the step of {fewest} row{'s' * (fewest > 1)}"
    report.add(f"decode step, {m} rows", "ms", time.scaled(1e3), limit=limit, limit_of=READ_LIMIT, note=note)

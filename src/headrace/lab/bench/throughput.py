"""Rates of whole workloads: prompts of several lengths, a batch without and a batch with a shared prefix."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.config import EngineConfig

from .engine_runs import Bench, Need, opened, run_requests
from .engine_settings import engine_settings
from .progress import now
from .report import Curve, Report
from .stats import spread
from .workload import OFFLINE, PREFILL_LENGTHS, PREFIX, Batch, draw_prompt

BATCH_LIMIT = "prompts at the {}, then weights and KV read once per step; no attention"


def bench_prefill(config: EngineConfig, lengths: Sequence[int] = PREFILL_LENGTHS, repeats: int = 5) -> Report:
    """Prompt tokens per second until the first token, one prompt at a time."""
    report = Report("prefill", {"lengths": list(lengths), "repeats": repeats})
    points = []
    with opened(config, Need("lengths", min(lengths), 1)) as bench:
        report.settings |= engine_settings(config) | {"model": bench.llm.model_name}
        limit = bench.cost.prefill_rate(bench.peaks, bench.in_floats) if bench.cost else None
        limit_of = f"matrix products at the {_peak(bench)}, no attention"
        for length in lengths:
            what = f"prefill, {length} tokens"
            if not bench.fits(length + 1):
                report.add(what, "tok/s", None, note=f"the longest sequence is {bench.llm.max_model_len} tokens")
                continue
            now(what)
            prompts = [draw_prompt(length, f"prefill {length} {run}") for run in range(-1, repeats)]
            runs = [run_requests(bench.llm, [prompt], 1) for prompt in prompts]
            rate = spread([length / run.total_s for run in runs[1:]])
            report.add(what, "tok/s", rate, limit=limit, limit_of=limit_of)
            points.append((float(length), rate.median))
    report.curves.append(Curve("Prefill", "prompt tokens", "tok/s", points))
    return report.finish()


def bench_offline(config: EngineConfig, batch: Batch = OFFLINE, repeats: int = 3) -> Report:
    """Output tokens per second of a batch that is there from the start, by the number of requests."""
    report = Report("offline", batch.settings | {"repeats": repeats})
    counts = sorted({1 << i for i in range(batch.count.bit_length()) if 1 << i < batch.count} | {batch.count})
    points = []
    with opened(config, Need("length", batch.length, batch.max_tokens)) as bench:
        report.settings |= engine_settings(config) | {"model": bench.llm.model_name}
        for count in counts:
            part = Batch(count, batch.length, batch.max_tokens, batch.shared)
            what = f"offline, {count} x ({part.length} in, {part.max_tokens} out)"
            now(what)
            runs = [run_requests(bench.llm, part.prompts(run), part.max_tokens) for run in range(-1, repeats)]
            rate = spread([part.num_output / run.total_s for run in runs[1:]])
            report.add(what, "output tok/s", rate, limit=_limit(bench, part), limit_of=BATCH_LIMIT.format(_peak(bench)))
            points.append((float(count), rate.median))
    report.curves.append(Curve("Offline batch", "requests", "output tok/s", points))
    return report.finish()


def bench_prefix(config: EngineConfig, batch: Batch = PREFIX, repeats: int = 3) -> Report:
    """A batch whose prompts share their beginning, with the prefix cache and, for comparison, without sharing."""
    report = Report("prefix", batch.settings | {"repeats": repeats})
    alone = Batch(batch.count, batch.length + batch.shared, batch.max_tokens)
    with opened(config, Need("shared", batch.shared + batch.length, batch.max_tokens)) as bench:
        report.settings |= engine_settings(config) | {"model": bench.llm.model_name}
        for what, each in (("shared", batch), ("distinct", alone)):
            name = f"{each.count} requests, {batch.shared} tokens {what} + {batch.length}, {each.max_tokens} out"
            now(name)
            runs = [run_requests(bench.llm, each.prompts(run), each.max_tokens) for run in range(repeats)]
            rate = spread([each.num_output / run.total_s for run in runs])
            report.add(name, "output tok/s", rate, limit=_limit(bench, each), limit_of=BATCH_LIMIT.format(_peak(bench)))
    return report.finish()


def _peak(bench: Bench) -> str:
    """Which peak, and by which instruction: that of the machine, whatever the kernels were told to use."""
    peaks = bench.peaks
    return f"float32 peak ({peaks.float_method})" if bench.in_floats else f"int8 peak ({peaks.byte_method})"


def _limit(bench: Bench, batch: Batch) -> float | None:
    return bench.cost.batch_rate(bench.peaks, batch, bench.in_floats) if bench.cost else None

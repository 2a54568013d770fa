"""Timings of single ops over the op-case table, with what they depend on beside them.

Measures only: nothing here decides whether a result is good enough.
"""

from __future__ import annotations

from headrace import env
from headrace.contract.errors import ConfigError
from headrace.kernels.case_reports import time_cases
from headrace.kernels.cases import CASES
from headrace.kernels.runtime import configure, usable_processors

from .report import Report
from .stats import Spread


def bench_ops(backend: str = "cpu", pattern: str = "", num_threads: int | None = None, repeats: int = 7) -> Report:
    """Times the cases whose name contains ``pattern``, else all that have sizes worth measuring.

    Raises ConfigError when no case matches or the backend is unknown.
    """
    names = matching_cases(pattern)
    threads = num_threads or env.num_threads() or usable_processors()
    configure(backend, threads, env.isa())
    report = Report("ops", {"backend": backend, "num_threads": threads, "repeats": repeats})
    for row in time_cases(backend, names, repeats):
        time = Spread(row["median_us"], row["best_us"], row["worst_us"], repeats)
        report.add(row["case"], "us", time, note=f"{row['op']}, {row['isa']}")
    return report.finish()


def matching_cases(pattern: str) -> list[str] | None:
    """Names of the timed cases with ``pattern`` in them, or of any case if no timed one has it; None for all timed."""
    if not pattern:
        return None
    timed = [case.name for case in CASES if case.timed and pattern in case.name]
    names = timed or [case.name for case in CASES if pattern in case.name]
    if not names:
        ops = ", ".join(sorted({case.op for case in CASES}))
        raise ConfigError("filter", f"no case has {pattern!r} in its name; ops: {ops}")
    return names

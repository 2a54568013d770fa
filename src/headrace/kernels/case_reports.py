"""What is measured and reported over the op-case table: timings, and which backend serves which op where."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any

from headrace.contract.errors import ConfigError

from .cases import CASES, Case, call, prepare
from .ops import Ops, op_names
from .resolve import BACKENDS, resolve_ops


def time_cases(
    backend: str = "cpu", names: Sequence[str] | None = None, repeats: int = 7, seconds: float = 0.02
) -> list[dict[str, Any]]:
    """Time the named cases (default: all timed ones).

    Each dict has case, op, backend, isa, median_us, best_us and worst_us of one call, over ``repeats`` runs of at least
    ``seconds`` each. In-place ops are repeated on their own output.
    """
    ops = resolve_ops(backend, strict=True)
    chosen = [c for c in CASES if (c.name in names if names is not None else c.timed)]
    return [_time_case(ops, case, repeats, seconds) for case in chosen]


def _time_case(ops: Ops, case: Case, repeats: int, seconds: float) -> dict[str, Any]:
    args = prepare(ops, case)
    run = partial(call, ops, case.op, args)
    run()
    count, spent = 1, 0.0
    while (spent := _time(run, count)) < seconds:
        count = max(2 * count, int(count * seconds / max(spent, 1e-9)))
    each = sorted([spent / count, *(_time(run, count) / count for _ in range(repeats - 1))])
    median, best = statistics.median(each) * 1e6, each[0] * 1e6
    return {
        "case": case.name,
        "op": case.op,
        "backend": ops.name,
        "isa": _isa(ops.name),
        "median_us": median,
        "best_us": best,
        "worst_us": each[-1] * 1e6,
    }


def _time(run: Callable[[], Any], count: int) -> float:
    start = perf_counter()
    for _ in range(count):
        run()
    return perf_counter() - start


def _isa(backend: str) -> str:
    if backend != "cpu":
        return "-"
    from .cpu import runtime

    return runtime.isa()


def support_matrix() -> list[dict[str, Any]]:
    """One dict per op, backend and instruction set: op, backend, isa, supported, cases (that test it)."""
    tested = {name: sum(case.op == name for case in CASES) for name in op_names()}
    return [
        {"op": op, "backend": backend, "isa": isa, "supported": op in own, "cases": tested[op]}
        for backend in BACKENDS
        for own, isas in [_served(backend)]
        for op in op_names()
        for isa in isas
    ]


def _served(backend: str) -> tuple[set[str], list[str]]:
    """Ops a backend serves itself, and its instruction sets; nothing and ["-"] when it cannot be loaded."""
    try:
        ops = resolve_ops(backend)
    except ConfigError:
        return set(), ["-"]
    served = {op for op, source in ops.provenance.items() if source == backend}
    if backend != "cpu":
        return served, ["-"]
    from .cpu import runtime

    return served, runtime.available_isas()

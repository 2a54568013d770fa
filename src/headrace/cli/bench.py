"""``headrace bench``: measurements of this machine."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from .console import print_json, print_table, to_stderr
from .flags import ReportFlags, flagged
from .guard import GuardedCommand

Backend = Annotated[str, typer.Option(help="cpu or reference.")]
Filter = Annotated[str, typer.Option(help="Only cases with this text in their name.")]
Threads = Annotated[int | None, typer.Option(help="Kernel threads. Default: every usable processor.")]
Repeats = Annotated[int, typer.Option(min=1, max=1000, help="Timed runs per case.")]


def bench_app() -> typer.Typer:
    """The group of measuring commands."""
    app = typer.Typer(no_args_is_help=True, help="Measure this machine.")
    app.callback()(_group)
    app.command("ops", cls=GuardedCommand)(bench_ops_command)
    return app


def _group() -> None:
    """Measure this machine."""


@flagged
def bench_ops_command(
    report: ReportFlags,
    backend: Backend = "cpu",
    filter: Filter = "",
    threads: Threads = None,
    repeats: Repeats = 7,
) -> None:
    """Time single ops."""
    from headrace.lab.op_bench import bench_ops

    result = bench_ops(backend, filter, threads, repeats)
    if report.as_json:
        print_json(asdict(result))
        return
    to_stderr(f"{result.num_threads} threads; one call in microseconds, median and best of {repeats} runs")
    headings = ("case", "op", "backend", "isa", "median_us", "best_us")
    print_table(headings, [[row[name] for name in headings] for row in result.rows])

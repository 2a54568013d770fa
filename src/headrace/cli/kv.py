"""``headrace kv``: the KV store on this machine, and what a store would do for a recorded trace."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.contract.errors import ConfigError

from . import kv_store
from .console import print_json, print_table, to_stderr, to_stdout
from .flags import ReportFlags, flagged
from .guard import GuardedCommand

if TYPE_CHECKING:
    from headrace.lab.kv_trace import TraceReport

CAPACITIES = "1000,3000,10000,30000,100000"
MOST_CAPACITIES = 32


def kv_app() -> typer.Typer:
    """The group of commands about stored KV."""
    app = typer.Typer(no_args_is_help=True, help="The KV store: look after it, and simulate one on a trace.")
    app.callback()(_group)
    commands: dict[str, Callable[..., None]] = {
        "stat": kv_store.stat_command,
        "check": kv_store.check_command,
        "purge": kv_store.purge_command,
        "gc": kv_store.gc_command,
        "size": kv_store.size_command,
        "simulate": simulate_command,
    }
    for name, command in commands.items():
        app.command(name, cls=GuardedCommand)(command)
    return app


def _group() -> None:
    """The KV store: look after it, and simulate one on a trace."""


@flagged
def simulate_command(
    trace: Annotated[
        Path, typer.Argument(help='A request a line, {"hash_ids": [1, 2]}, as in Mooncake\'s open traces.')
    ],
    report: ReportFlags,
    capacities: Annotated[str, typer.Option(help="Blocks the store holds; whole numbers, commas.")] = CAPACITIES,
    plot: Annotated[Path | None, typer.Option(help="Draw the rates into this .png file.")] = None,
) -> None:
    """Hit rates by capacity: LRU, the store's own policy, Belady and the infinite cache."""
    from headrace.lab.kv_trace import read_trace, simulate

    wanted = parse_capacities(capacities)
    if plot is not None:
        from headrace.lab.bench.plot import check_plot

        check_plot(plot)
    chains = read_trace(trace)
    result = simulate(chains, wanted, (lambda c: to_stderr(f"{c} blocks: done")) if report.verbose else None)
    if plot is not None:
        _plot(result, plot)
    _print(result, as_json=report.as_json)


def parse_capacities(text: str) -> list[int]:
    """Rising whole numbers. Raises ConfigError."""
    try:
        wanted = sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise ConfigError("capacities", f"must be whole numbers separated by commas, got {text!r}") from None
    if not 1 <= wanted[0] <= wanted[-1] <= 1 << 30 or len(wanted) > MOST_CAPACITIES:
        raise ConfigError("capacities", f"must be 1 to {MOST_CAPACITIES} positive numbers, 2^30 at most")
    return wanted


def _plot(result: TraceReport, path: Path) -> None:
    from headrace.lab.bench.plot import save_lines

    lines = {name: [(row.capacity, getattr(row, name)) for row in result.rows] for name in ("lru", "ours", "belady")}
    lines["infinite"] = [(row.capacity, result.infinite) for row in result.rows]
    save_lines(lines, path, "capacity (blocks)", "hits / blocks asked for")
    to_stderr(f"wrote {path}")


def _print(result: TraceReport, *, as_json: bool) -> None:
    if as_json:
        import msgspec

        print_json(msgspec.to_builtins(result))
        return
    to_stdout(
        f"{result.requests:,} requests, {result.blocks:,} blocks, {result.distinct:,} distinct; "
        f"infinite cache {result.infinite:.4f}\n"
    )
    rows = [
        [f"{row.capacity:,}", f"{row.lru:.4f}", f"{row.ours:.4f}", f"{row.belady:.4f}", row.policy]
        for row in result.rows
    ]
    print_table(("blocks", "LRU", "ours", "Belady", "policy at the end"), rows)

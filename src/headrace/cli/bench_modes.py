"""``headrace bench overlap``, ``determinism``, ``verification``: settings of the engine in turns, and their ratios."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from .bench_delivery import BenchFlags, ManyStreams, PairRows, Repeats, TableFlags, parse_counts, report
from .flags import EngineFlags, flagged

Tokens = Annotated[int, typer.Option(min=2, help="Tokens per stream and run.")]


@flagged
def overlap(
    engine: EngineFlags, flags: BenchFlags, rows: PairRows = None, tokens: Tokens = 128, repeats: Repeats = 5
) -> None:
    """The synchronous and the overlapped loop in turns: rates, their ratio, the device's idle time."""
    from headrace.lab.bench.overlap import ROWS, bench_overlap

    wanted = parse_counts("rows", rows) or ROWS
    report(lambda: bench_overlap(engine.resolve(), wanted, tokens, repeats), flags)


@flagged
def determinism(
    engine: EngineFlags,
    flags: BenchFlags,
    tables: TableFlags,
    rows: PairRows = None,
    tokens: Tokens = 128,
    repeats: Repeats = 5,
) -> None:
    """What the deterministic mode costs: the same work without and with it in turns, as a ratio; with --speculation
    self or draft_model, also the drafts it accepts less."""
    from headrace.lab.bench.determinism import ROWS, bench_determinism

    wanted = parse_counts("rows", rows) or ROWS
    report(lambda: bench_determinism(engine.resolve(), wanted, tokens, repeats), flags, tables, bench="determinism")


@flagged
def verification(
    engine: EngineFlags,
    flags: BenchFlags,
    tables: TableFlags,
    streams: ManyStreams = None,
    tokens: Tokens = 64,
    repeats: Repeats = 3,
) -> None:
    """Drafts verified in every step against as many as the planner wants, by number of streams: how many, how many
    stand, and tokens per second against none; --speculation says who guesses."""
    from headrace.lab.bench.verification import STREAMS, bench_verification

    wanted = parse_counts("streams", streams) or STREAMS
    engine = dataclasses.replace(engine, speculation=engine.speculation or "draft_heads")
    report(lambda: bench_verification(engine.resolve(), wanted, tokens, repeats), flags, tables, bench="verification")

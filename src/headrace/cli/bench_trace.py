"""``headrace bench trace``: disciplines beside one another on a trace of arrivals."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from headrace.config import EngineConfig
from headrace.contract.errors import ConfigError, PullError

from .bench_delivery import BenchFlags, TableFlags, check_delivery, deliver, plotted, show
from .console import to_stderr
from .flags import EngineFlags, flagged

Trace = Annotated[Path, typer.Argument(help="CSV with the columns TIMESTAMP, ContextTokens and GeneratedTokens.")]
Requests = Annotated[int, typer.Option(min=1, max=1 << 20, help="Arrivals to take.")]
Skip = Annotated[int, typer.Option(min=0, help="Arrivals to leave out before them.")]
TimeScale = Annotated[float, typer.Option(min=0, help="Times the gaps between arrivals; 0: all come at once.")]
LengthScale = Annotated[float, typer.Option(min=0.0001, max=1000, help="Times the lengths of prompts and outputs.")]
Longest = Annotated[int, typer.Option(min=2, help="Longest sequence in tokens; longer prompts are cut.")]
Ranks = Annotated[int, typer.Option(min=1, max=64, help="Processes of each discipline.")]
Rounds = Annotated[int, typer.Option(min=1, max=100, help="Runs of each discipline, in turns.")]
Deadline = Annotated[float, typer.Option(min=1, help="Most seconds from the last arrival to the last token.")]
Disciplines = Annotated[str, typer.Option(help="Which to compare, of mixed, voted and split, separated by commas.")]


@flagged
def trace(
    trace_file: Trace,
    engine: EngineFlags,
    flags: BenchFlags,
    tables: TableFlags,
    disciplines: Disciplines = "mixed,voted",
    ranks: Ranks = 2,
    requests: Requests = 100,
    skip: Skip = 0,
    time_scale: TimeScale = 1.0,
    length_scale: LengthScale = 1.0,
    longest: Longest = 2048,
    rounds: Rounds = 1,
    deadline: Deadline = 1800.0,
) -> None:
    """Throughput, time to first token and time between tokens of disciplines on the same trace; no HTTP."""
    from headrace.lab.bench.progress import told
    from headrace.lab.bench.trace_bench import TraceWork, bench_trace, parse_disciplines, require_fits
    from headrace.lab.bench.trace_plot import save_trace_plot

    names = parse_disciplines(disciplines)
    if engine.discipline is not None or engine.data_parallel_size is not None:
        raise ConfigError("disciplines", "are compared: give --disciplines and --ranks, not those of one engine")
    config = engine.resolve()
    work = TraceWork(trace_file, requests, skip, time_scale, length_scale, longest, deadline)
    require_fits(work.arrivals(), _context(config))  # refused before any work
    check_delivery(flags)
    tables.check("trace")
    with told(to_stderr):
        result = bench_trace(config, work, names, ranks, rounds)
    others = [plotted(flags.plot, partial(save_trace_plot, result))] if flags.plot is not None else []
    deliver(result.plain(), flags, lambda: show(result), *others, partial(tables.write, result.plain()))


def _context(config: EngineConfig) -> int:
    """Tokens of a sequence at most, as far as that is known without an engine; the pool may hold less."""
    from headrace.lab.bench.trace_file import MOST_TOKENS

    from .model_facts import model_facts

    try:
        most: int = model_facts(config.model.model)["context_tokens"]
    except PullError:  # not here yet: the engine fetches it
        most = MOST_TOKENS
    return min(most, config.model.max_model_len or most)

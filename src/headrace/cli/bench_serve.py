"""``headrace bench serve``: load on a server that runs already, ours or another that speaks OpenAI's protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.contract.errors import ConfigError

from .bench_delivery import BenchFlags, report
from .flags import flagged
from .guard import SOME_FAILED

Milliseconds = Annotated[float | None, typer.Option(min=0.001, help="Limit in ms that a good request keeps.")]
Rate = Annotated[
    float | None,
    typer.Option("--rate", "--request-rate", min=0.001, max=1e5, help="Requests a second, at drawn times."),
]
Burstiness = Annotated[
    float | None,
    typer.Option(min=0.001, help="With --rate: 1 [default] draws Poisson times, less sends in bursts, more evenly."),
]
Concurrency = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=10_000,
        help="Requests at once; the next when one ends. With --rate or --trace: at most so many, later ones wait.",
    ),
]
TraceFile = Annotated[Path | None, typer.Option(help="Recorded times and lengths: .jsonl or .csv.")]
Speed = Annotated[float, typer.Option(min=0.001, help="How much faster than the trace.")]
MaxId = Annotated[int, typer.Option(min=2, help="Prompts are ids below this; the model must have them.")]


@flagged
def bench_serve_command(
    flags: BenchFlags,
    url: Annotated[str, typer.Option(help="The server.")] = "http://127.0.0.1:8000",
    model: Annotated[str | None, typer.Option(help="Default: the first one it serves.")] = None,
    key: Annotated[str | None, typer.Option(help="API key.")] = None,
    requests: Annotated[int, typer.Option(min=1, help="How many; of a trace, at most.")] = 64,
    length: Annotated[int, typer.Option(min=1, help="Tokens of each drawn prompt.")] = 128,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens to generate; of a trace, at most.")] = 64,
    rate: Rate = None,
    burstiness: Burstiness = None,
    concurrency: Concurrency = None,
    trace: TraceFile = None,
    speed: Speed = 1.0,
    max_length: Annotated[int, typer.Option(min=1, help="Longer prompts of a trace are cut to this.")] = 4096,
    max_id: MaxId = 40_000,
    seed: Annotated[int, typer.Option(help="Same seed, same requests.")] = 0,
    slo_ttft: Milliseconds = None,
    slo_tpot: Milliseconds = None,
    slo_e2e: Milliseconds = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds a request may take.")] = 600.0,
) -> None:
    """Throughput, TTFT, inter-token times and goodput of a running server, under open-loop or closed-loop load."""
    from headrace.lab.bench.load.arrivals import Synthetic, Trace
    from headrace.lab.bench.load.client import Target
    from headrace.lab.bench.load.figures import Slo
    from headrace.lab.bench.load.run import bench_serve

    if trace is not None and rate is not None:
        raise ConfigError("rate", "contradicts a trace, which says itself when to send; see --speed")
    if burstiness is not None and rate is None:
        raise ConfigError("burstiness", "is of the times that are drawn with --rate")
    load: Synthetic | Trace
    if trace is not None:
        load = Trace(trace, requests, speed, max_length, tokens, max_id, seed)
    else:
        load = Synthetic(requests, length, tokens, rate, max_id, seed, burstiness or 1.0)
        concurrency = concurrency or (None if rate else 8)
    slo = Slo(*(None if limit is None else limit / 1000 for limit in (slo_ttft, slo_tpot, slo_e2e)))
    target = Target(url.rstrip("/"), model, key, timeout)
    result = report(lambda: bench_serve(target, load, concurrency, slo), flags)
    if result.settings["answered"] < result.settings["sent"]:
        raise typer.Exit(SOME_FAILED if result.settings["answered"] else 1)  # the table says why

"""``headrace bench``: measurements of this engine and this machine, as a table, as JSON and as a plot."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.contract.errors import ConfigError

from .bench_delivery import (
    BenchFlags,
    Counts,
    Prompt,
    Repeats,
    Requests,
    Shared,
    TableFlags,
    Tokens,
    check_delivery,
    deliver,
    parse_counts,
    report,
    write_out,
)
from .console import print_table, to_stderr
from .flags import EngineFlags, flagged
from .guard import EngineCommand, GuardedCommand

if TYPE_CHECKING:
    from headrace.lab.bench.report import Report

Filter = Annotated[str, typer.Option(help="Only cases with this text in their name.")]
Threads = Annotated[int | None, typer.Option(help="Most kernel threads. Default: every usable processor.")]
Backend = Annotated[str, typer.Option(help="cpu or reference.")]
Cache = Annotated[Path, typer.Option(help="Folder for environments, model files and logs of other engines.")]


def bench_app() -> typer.Typer:
    """The group of measuring commands."""
    from .bench_modes import determinism, overlap, verification
    from .bench_trace import trace

    app = typer.Typer(no_args_is_help=True, help="Measure this engine and this machine.")
    app.callback()(_group)
    from .bench_serve import bench_serve_command  # it needs the flags of this file

    commands: dict[str, Callable[..., None]] = {
        "latency": latency,
        "prefill": prefill,
        "offline": offline,
        "prefix": prefix,
        "overlap": overlap,
        "determinism": determinism,
        "speculation": speculation,
        "verification": verification,
        "startup": startup,
        "perplexity": perplexity,
        "trace": trace,
        "scheduler": scheduler,
        "roofline": roofline,
        "ops": ops,
        "profile": profile,
        "peers": peers,
        "serve": bench_serve_command,
    }
    for name, command in commands.items():
        app.command(name, cls=GuardedCommand if name == "serve" else EngineCommand)(command)
    return app


def _group() -> None:
    """Measure this engine and this machine."""


@flagged
def latency(
    engine: EngineFlags,
    flags: BenchFlags,
    depths: Counts = None,
    rows: Counts = None,
    tokens: Annotated[int, typer.Option(min=2, help="Tokens per run.")] = 128,
    repeats: Repeats = 5,
) -> None:
    """Decode rate of one stream by depth, and T(M), the time of one step with M rows."""
    from headrace.lab.bench import workload
    from headrace.lab.bench.latency import bench_latency

    wanted_depths = parse_counts("depths", depths) or workload.DECODE_DEPTHS
    wanted_rows = parse_counts("rows", rows) or workload.STEP_ROWS
    report(lambda: bench_latency(engine.resolve(), wanted_depths, wanted_rows, tokens, repeats), flags)


@flagged
def prefill(engine: EngineFlags, flags: BenchFlags, lengths: Counts = None, repeats: Repeats = 5) -> None:
    """Prompt tokens per second, by prompt length."""
    from headrace.lab.bench import workload
    from headrace.lab.bench.throughput import bench_prefill

    wanted = parse_counts("lengths", lengths) or workload.PREFILL_LENGTHS
    report(lambda: bench_prefill(engine.resolve(), wanted, repeats), flags)


@flagged
def offline(
    engine: EngineFlags,
    flags: BenchFlags,
    requests: int = 32,
    length: int = 128,
    tokens: int = 64,
    repeats: Repeats = 3,
) -> None:
    """Output tokens per second of a batch of requests, by its size."""
    from headrace.lab.bench.throughput import bench_offline
    from headrace.lab.bench.workload import Batch

    report(lambda: bench_offline(engine.resolve(), Batch(requests, length, tokens), repeats), flags)


@flagged
def prefix(
    engine: EngineFlags,
    flags: BenchFlags,
    requests: Requests = 32,
    shared: Shared = 1024,
    length: Prompt = 32,
    tokens: Tokens = 32,
    repeats: Repeats = 3,
) -> None:
    """Output tokens per second of requests whose prompts begin alike."""
    from headrace.lab.bench.throughput import bench_prefix
    from headrace.lab.bench.workload import Batch

    report(lambda: bench_prefix(engine.resolve(), Batch(requests, length, tokens, shared), repeats), flags)


@flagged
def speculation(
    engine: EngineFlags,
    flags: BenchFlags,
    tables: TableFlags,
    streams: Counts = None,
    tokens: Annotated[int, typer.Option(min=2, help="Tokens per request.")] = 256,
    repeats: Repeats = 5,
    workloads: Annotated[str, typer.Option(help="Only those with one of these texts in their name.")] = "",
) -> None:
    """Tokens per second with guessed tokens against none, in turns; --speculation says who guesses."""
    from headrace.lab.bench.speculation import STREAMS, bench_speculation

    wanted = parse_counts("streams", streams) or STREAMS
    names = [name.strip() for name in workloads.split(",")]
    engine = dataclasses.replace(engine, speculation=engine.speculation or "ngram")
    report(
        lambda: bench_speculation(engine.resolve(), wanted, tokens, repeats, names), flags, tables, bench="speculation"
    )


@flagged
def startup(engine: EngineFlags, flags: BenchFlags, repeats: Repeats = 5) -> None:
    """From process start to the first token, and the memory it takes."""
    from headrace.lab.bench.startup import bench_startup

    report(lambda: bench_startup(engine.resolve(), repeats), flags)


@flagged
def perplexity(
    engine: EngineFlags,
    flags: BenchFlags,
    window: Annotated[int, typer.Option(min=2, help="Tokens per window.")] = 1024,
    windows: Annotated[int, typer.Option(min=1, help="How many windows.")] = 16,
) -> None:
    """Perplexity on a pinned public-domain text, fetched at first use."""
    from headrace.lab.bench.perplexity import bench_perplexity

    report(lambda: bench_perplexity(engine.resolve(), window, windows), flags)


@flagged
def scheduler(
    flags: BenchFlags,
    running: Counts = None,
    repeats: Repeats = 5,
    vllm: Annotated[bool, typer.Option("--vllm", help="Measure vLLM's scheduler in turns with ours.")] = False,
    cache: Cache = Path("build/peers"),
) -> None:
    """Microseconds of scheduling per step, by the number of running sequences; no model runs."""
    from headrace.lab.bench.scheduler import RUNNING, bench_scheduler
    from headrace.lab.bench.scheduler_peer import vllm_scheduler

    wanted = parse_counts("running", running) or RUNNING

    def run() -> Report:
        if not vllm:
            return bench_scheduler(wanted, repeats)
        with vllm_scheduler(cache, to_stderr) as peer:
            return bench_scheduler(wanted, repeats, peer)

    report(run, flags)


@flagged
def roofline(flags: BenchFlags, threads: Threads = None, repeats: Repeats = 5) -> None:
    """This machine's limits: memory read, float32 and int8 multiply-adds."""
    from headrace.lab.bench.roofline import bench_roofline

    report(lambda: bench_roofline(threads, repeats), flags)


@flagged
def ops(
    flags: BenchFlags, backend: Backend = "cpu", filter: Filter = "", threads: Threads = None, repeats: Repeats = 7
) -> None:
    """Time single ops."""
    from headrace.lab.bench.ops import bench_ops

    report(lambda: bench_ops(backend, filter, threads, repeats), flags)


@flagged
def profile(
    engine: EngineFlags,
    flags: BenchFlags,
    rows: Counts = None,
    depth: Annotated[int, typer.Option(min=0, help="Tokens cached before the decode step.")] = 128,
    prompt: Annotated[int, typer.Option(min=2, help="Tokens of the prefill step.")] = 512,
    repeats: Repeats = 15,
) -> None:
    """Where one decode step and one prefill step spend their time, op by op."""
    from headrace.lab.bench.profile import bench_profile

    wanted = parse_counts("rows", rows) or (1,)
    report(lambda: bench_profile(engine.resolve(), wanted, depth, prompt, repeats), flags)


@flagged
def peers(
    flags: BenchFlags,
    cache: Cache = Path("build/peers"),
    only: Annotated[str | None, typer.Option(help="Only contenders with one of these texts in their name.")] = None,
    tasks: Annotated[str | None, typer.Option(help="Only tasks with one of these texts in their name.")] = None,
    rounds: Repeats = 3,
    windows: Annotated[int, typer.Option(min=0, help="Windows for perplexity; 0: none.")] = 16,
    window: Annotated[int, typer.Option(min=2, help="Tokens per window.")] = 1024,
    threads: Annotated[int | None, typer.Option(min=1, help="Default: every usable processor.")] = None,
    deadline: Annotated[float, typer.Option(min=1, help="Most seconds for one run of one contender.")] = 900.0,
    small: Annotated[bool, typer.Option("--small", help="Little work: shows that all runs, not how fast.")] = False,
    table: Annotated[
        list[Path] | None, typer.Option(help="Document whose marked table is replaced; may be given several times.")
    ] = None,
) -> None:
    """This engine beside others, each in an environment of its own, A B A B; the first run installs them."""
    from headrace.lab.bench.contenders import chosen
    from headrace.lab.bench.documents import check_document, insert
    from headrace.lab.bench.peers_bench import bench_peers
    from headrace.lab.bench.table import grid, reasons

    contenders = chosen(only)
    check_delivery(flags)
    if flags.plot is not None:
        raise ConfigError("plot", "the comparison is a table; it has no curve")
    for document in table or ():
        check_document(document)
    result = bench_peers(
        cache,
        to_stderr,
        contenders,
        rounds,
        windows,
        window,
        small,
        tasks,
        threads,
        deadline,
        keep=lambda sofar: write_out(sofar.plain(), flags),
    ).plain()
    for document in table or ():
        insert(document, result)
    deliver(result, flags, lambda: print_table(*grid(result)))
    for reason in reasons(result):
        to_stderr(reason)

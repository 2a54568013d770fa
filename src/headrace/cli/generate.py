"""``headrace generate``: every prompt of a file, results to another file. Run it again and it goes on where it was."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from headrace.contract.errors import ConfigError

from .batch.journal import Journal
from .batch.lines import read_lines
from .batch.loop import Batch, Tally
from .console import print_json, to_stderr
from .flags import EngineFlags, ReportFlags, SamplingFlags, flagged
from .guard import SOME_FAILED
from .interrupts import Interrupts
from .loading import loaded_llm

WINDOW_PER_SLOT = 2  # open requests per sequence the engine runs: enough waiting that no slot ever stands empty

Input = Annotated[Path, typer.Option("--input", "-i", help="JSON lines, one prompt each.")]
Output = Annotated[
    Path, typer.Option("--output", "-o", help="JSON lines, one result each. An existing file is resumed.")
]


@flagged
def generate(
    input_file: Input,
    output_file: Output,
    engine: EngineFlags,
    sampling: SamplingFlags,
    report: ReportFlags,
) -> None:
    """Run a batch of prompts from a file.

    Each input line is an object with "prompt", "prompt_token_ids" or "messages", and optionally "id" and sampling
    fields. Results come in the order they finish. A line that cannot be served gets a record with "error"; one that the
    engine failed on gets none and is taken again by the next run.
    """
    config, params = engine.resolve(), sampling.params()
    with open_input(input_file, output_file) as source, Journal(output_file) as journal:
        announce(journal)
        with loaded_llm(config, report.verbose) as loaded, Interrupts() as interrupts:
            batch = Batch(loaded.llm, journal, params, WINDOW_PER_SLOT * config.scheduler.max_seqs)
            with batch_progress(source) as on_turn:
                batch.run(read_lines(source), interrupts, on_turn)
    conclude(batch.tally, interrupts, output_file, report)


@contextmanager
def open_input(path: Path, output: Path) -> Iterator[BinaryIO]:
    """Raises ConfigError when the input cannot be read or is the output."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise ConfigError("input", f"{path}: {error.strerror}") from error
    with file:
        if os.path.isdir(path) or (output.exists() and output.samefile(path)):
            raise ConfigError("output", "is the input file; choose another one")
        yield file


def announce(journal: Journal) -> None:
    """Says what is resumed and what was repaired."""
    if journal.num_found:
        to_stderr(f"resuming: {journal.path} holds {journal.num_found} records")
    if journal.num_cut_bytes:
        to_stderr(f"repaired: cut {journal.num_cut_bytes} bytes of an unfinished record off {journal.path}")


def conclude(tally: Tally, interrupts: Interrupts, output: Path, report: ReportFlags) -> None:
    """The summary, and the exit code of a run that was interrupted or has error records."""
    if report.as_json:
        print_json({"output": str(output), **tally.report(), "interrupted": interrupts.asked})
    filed = ' (see their "error")' if tally.num_failed > tally.num_unfiled else ""
    failed = f", {tally.num_failed} failed{filed}" if tally.num_failed else ""
    skipped = f", {tally.num_skipped} were done before" if tally.num_skipped else ""
    speed = f"{tally.num_completion_tokens} tokens in {tally.seconds:.1f} s, {tally.tokens_per_s:.1f} tokens/s"
    to_stderr(f"{tally.num_completed} completed{failed}{skipped}; {speed}")
    if tally.num_unfiled:
        to_stderr(f"the engine failed on {tally.num_unfiled} of them: {tally.first_failure}")
        to_stderr("they have no record; run the same command again to take them again")
    if interrupts.asked:
        to_stderr("stopped; run the same command again to resume")
        raise typer.Exit(interrupts.exit_code)
    if tally.num_failed:
        raise typer.Exit(SOME_FAILED)


@contextmanager
def batch_progress(source: BinaryIO) -> Iterator[Callable[[Tally], None]]:
    """A bar over the input's bytes on a terminal; silent elsewhere (the summary line is enough there)."""
    if not sys.stderr.isatty():
        yield unwatched
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("generating"), BarColumn(), TextColumn("{task.fields[news]}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as display:
        task = display.add_task("", total=_size(source), news="")

        def on_turn(tally: Tally) -> None:
            failed = f", {tally.num_failed} failed" if tally.num_failed else ""
            news = f"{tally.num_completed} completed{failed}, {tally.tokens_per_s:.1f} tokens/s"
            display.update(task, completed=tally.num_input_bytes, news=news)

        yield on_turn


def unwatched(tally: Tally) -> None:
    """Nobody looks."""


def _size(source: BinaryIO) -> int | None:
    """Bytes of a file; None for a pipe."""
    try:
        return os.fstat(source.fileno()).st_size or None
    except OSError:
        return None

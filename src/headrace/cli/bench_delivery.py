"""What all measuring commands have in common: repeats, where results go, and how a report is shown."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.contract.errors import ConfigError, HeadraceError
from headrace.contract.files import require_writable

from .console import bytes_text, print_json, print_table, to_stderr

if TYPE_CHECKING:
    from headrace.lab.bench.report import Report

MAX_COUNT = 1 << 20
Repeats = Annotated[int, typer.Option(min=1, max=1000, help="Measured runs; the table shows their median.")]
Requests = Annotated[int, typer.Option(min=1, max=1 << 16, help="How many requests.")]
Prompt = Annotated[int, typer.Option(min=1, max=MAX_COUNT, help="Tokens of each prompt that are its own.")]
Shared = Annotated[int, typer.Option(min=1, max=MAX_COUNT, help="Tokens with which all prompts begin.")]
Tokens = Annotated[int, typer.Option(min=1, max=MAX_COUNT, help="Tokens to generate for each request.")]
Depths = Annotated[
    str | None, typer.Option(help="Tokens before those timed, such as 128,4096; the first is T(M)'s. [128,4096,7936]")
]
Lengths = Annotated[str | None, typer.Option(help="Tokens of the prompts, such as 512,4096. [512,4096,7936]")]
StepRows = Annotated[
    str | None, typer.Option(help="Sequences in one decode step, the M of T(M), such as 1,2,8. [1 to 16, and 32]")
]
ProfiledRows = Annotated[str | None, typer.Option(help="Sequences in the decode step, such as 1,8,32. [1]")]
PairRows = Annotated[str | None, typer.Option(help="Streams that decode at once, such as 1,8. [1,8]")]
Streams = Annotated[str | None, typer.Option(help="Requests at once, such as 1,8. [1,8]")]
ManyStreams = Annotated[str | None, typer.Option(help="Requests at once, such as 1,8. [1,8,32,96]")]
Running = Annotated[str | None, typer.Option(help="Sequences that run at once, such as 64,256. [64,256,1024]")]


@dataclasses.dataclass(frozen=True)
class BenchFlags:
    """Where the results go, besides the table on stdout."""

    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of the table.")] = False
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the JSON to this file as well.")] = None
    plot: Annotated[Path | None, typer.Option(help="Draw the curves or bars into this .png file.")] = None
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say more on stderr.")] = False
    traceback: Annotated[bool, typer.Option("--traceback", help="Show where an error came from.")] = False


@dataclasses.dataclass(frozen=True)
class TableFlags:
    """Documents whose table of this benchmark is written anew."""

    table: Annotated[
        list[Path] | None, typer.Option(help="Document whose marked table is replaced; may be given several times.")
    ] = None

    def check(self, bench: str) -> None:
        """Raises ConfigError, before any work, for a document without this benchmark's markers."""
        from headrace.lab.bench.documents import check_document, places_of

        for document in self.table or ():
            check_document(document, places_of(bench))

    def write(self, plain: dict[str, Any]) -> None:
        from headrace.lab.bench.documents import insert, places_of

        for document in self.table or ():
            insert(document, plain, places_of(plain["bench"]))


NO_TABLE = TableFlags()


def parse_counts(field: str, text: str | None, most: int = MAX_COUNT) -> tuple[int, ...]:
    """``1,2,16`` as numbers; none for None. Raises ConfigError naming the option."""
    if text is None:
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and 0 < int(part) <= most for part in parts):
        raise ConfigError(field, f"must be whole numbers from 1 to {most}, separated by commas, got {text!r}")
    return tuple(dict.fromkeys(int(part) for part in parts))


def report(
    run: Callable[[], Report], flags: BenchFlags, tables: TableFlags = NO_TABLE, *, bench: str | None = None
) -> Report:
    """Checks where results go, measures, and delivers. ``bench`` names what the tables are of. Raises ConfigError
    before any work."""
    from headrace.lab.bench.plot import save_plot
    from headrace.lab.bench.progress import told

    check_delivery(flags)
    if bench is not None:
        tables.check(bench)
    with told(to_stderr):
        result = run()
    others = [plotted(flags.plot, partial(save_plot, result))] if flags.plot is not None else []
    deliver(result.plain(), flags, lambda: show(result), *others, partial(tables.write, result.plain()))
    return result


def check_delivery(flags: BenchFlags) -> None:
    """Raises ConfigError for a file that could not be written. Leaves none behind."""
    from headrace.lab.bench.plot import check_plot

    if flags.plot is not None:
        check_plot(flags.plot)
    for field, path in (("out", flags.out), ("plot", flags.plot)):
        if path is not None:
            check_target(field, path)


def check_target(field: str, path: Path) -> None:
    """Raises ConfigError unless ``path`` can be written, by trying."""
    try:
        require_writable(path)
    except OSError as error:
        raise ConfigError(field, f"{path} cannot be written: {error.strerror}") from error


def deliver(
    plain: dict[str, Any], flags: BenchFlags, show_table: Callable[[], None], *others: Callable[[], object]
) -> None:
    """JSON or the table on stdout, then the JSON's file, then ``others``. Whichever fails, the rest is still tried: no
    measurement is to be lost to a full disk or a closed pipe."""
    with ExitStack() as outputs:  # which calls the last one first
        for other in reversed(others):
            outputs.callback(other)
        outputs.callback(write_out, plain, flags)
        outputs.callback(_written, "standard output", partial(print_json, plain) if flags.as_json else show_table)


def write_out(plain: dict[str, Any], flags: BenchFlags) -> None:
    """JSON into the file that was named, if any."""
    if (out := flags.out) is not None:
        _written(f"out: {out}", lambda: out.write_text(json.dumps(plain, indent=1) + "\n"))


def plotted(path: Path, draw: Callable[[Path], None]) -> Callable[[], None]:
    """``draw`` into ``path``, with the file in the error."""
    return lambda: _written(f"plot: {path}", lambda: draw(path))


def _written(target: str, write: Callable[[], object]) -> None:
    try:
        write()
    except BrokenPipeError:  # whoever reads has enough
        raise
    except OSError as error:
        raise HeadraceError(f"{target} cannot be written: {error.strerror or error}") from error


def show(result: Report) -> None:
    """The table on stdout, what it depends on above it on stderr."""
    from headrace.lab.bench.machine import describe

    to_stderr(describe(result.machine))
    to_stderr(f"{result.bench}: {_settings(result.settings)}; peak memory {bytes_text(result.peak_rss_bytes)}")
    rows = [_cells(row.plain()) for row in result.rows]
    headings = ["what", "median", "min", "max", "unit", "runs", "limit", "share", "remark"]
    used = [i for i in range(len(headings)) if i < 6 or any(row[i] for row in rows)]
    print_table([headings[i] for i in used], [[row[i] for i in used] for row in rows])


def _settings(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in settings.items())


def _cells(row: dict[str, Any]) -> list[str]:
    value, share = row["value"], row["share"]
    figures = [figure(value[name]) for name in ("median", "low", "high")] if value else ["-", "", ""]
    runs = str(value["runs"]) if value else ""
    limit = figure(row["limit"]) if row["limit"] else ""
    remark = "; ".join(part for part in (row["note"], row["limit_of"] and f"limit: {row['limit_of']}") if part)
    return [row["what"], *figures, row["unit"], runs, limit, f"{share:.0%}" if share else "", remark]


def figure(value: float) -> str:
    """Three significant digits, and no more than the whole number for large ones."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"

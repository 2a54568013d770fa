"""``headrace explain``: what a recorded engine did at every step, why, and whether it would do so again."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from headrace.contract.errors import ConfigError, RecordingError
from headrace.lab.explain.page import page_range, render
from headrace.lab.explain.teller import tell
from headrace.lab.explain.text import WIDTH, print_recording
from headrace.lab.replay import replay
from headrace.lab.worked_examples import RECORDINGS
from headrace.obs.recording import Recording, read_recording
from headrace.obs.trace import perfetto

STEPS_UNASKED = 100  # printed without --steps


def explain(
    file: Annotated[str, typer.Argument(help="A recording, or a worked example by name (v-e1, twins, ...).")],
    html: Annotated[
        Path | None, typer.Option("--html", help="Write one self-contained page here instead of text.")
    ] = None,
    perfetto_out: Annotated[
        Path | None, typer.Option("--perfetto", help="Write a timeline for Perfetto here instead of text.")
    ] = None,
    steps: Annotated[
        str | None,
        typer.Option("--steps", help="A:B, both included; also A:, :B or one number (shows its packing too)."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the story as one JSON object.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Only replay; exit 1 when a plan comes out otherwise.")
    ] = False,
) -> None:
    """Explains a flight recording step by step: who was scheduled, how much, and why."""
    recording = read_recording(find_recording(file))
    if check:
        raise typer.Exit(_check(recording))
    first, last = parse_steps(steps, recording.num_steps)
    if perfetto_out is not None:
        _write(perfetto_out, json.dumps(perfetto(recording)))
    if html is not None:
        _write(html, _page(recording, first, last))
    if as_json:
        sys.stdout.write(msgspec.json.encode(tell(recording, first, last)).decode() + "\n")
    elif html is None and perfetto_out is None:
        _print(recording, first, last, limited=steps is None)


def find_recording(file: str) -> Path:
    """A file, else a worked example of that name. Raises RecordingError listing the names."""
    if Path(file).is_file():
        return Path(file)
    examples = {path.stem: path for path in sorted(RECORDINGS.glob("*.jsonl"))}
    if file in examples:
        return examples[file]
    raise RecordingError(file, 0, f"no such file, nor a worked example ({', '.join(examples)})")


def parse_steps(steps: str | None, num_steps: int) -> tuple[int, int]:
    """First and last step, both included. Raises ConfigError."""
    if steps is None:
        return 0, max(num_steps - 1, 0)
    first, colon, last = steps.partition(":")
    try:
        start = int(first) if first else 0
        end = start if not colon else int(last) if last else max(num_steps - 1, 0)
    except ValueError:
        raise ConfigError("--steps", f"must be A:B, A:, :B or a number, got {steps!r}") from None
    if not 0 <= start <= end or start >= num_steps:
        raise ConfigError("--steps", f"{steps!r} is outside of steps 0:{num_steps - 1}")
    return start, min(end, num_steps - 1)


def _check(recording: Recording) -> int:
    report = replay(recording)
    if recording.truncated:
        typer.echo("The recording's last line was cut off and is left out.", err=True)
    if report.difference is not None:
        typer.echo(f"{recording.path}: {report.difference}")
        return 1
    typer.echo(f"{recording.path}: {report.num_steps} steps replayed, every plan the same")
    return 0


def _page(recording: Recording, first: int, last: int) -> str:
    shown = page_range(recording, first, last)
    if shown != (first, last):
        typer.echo(f"The page holds steps {shown[0]}:{shown[1]} of {first}:{last}; see --steps.", err=True)
    return render(tell(recording, *shown))


def _print(recording: Recording, first: int, last: int, *, limited: bool) -> None:
    shown = min(last, first + STEPS_UNASKED - 1) if limited else last
    console = Console(highlight=False) if sys.stdout.isatty() else Console(highlight=False, width=WIDTH)
    print_recording(recording, first, shown, console)
    if shown < last:
        typer.echo(f"Steps {first}:{shown} of {first}:{last} are shown; --steps A:B shows others.", err=True)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(str(path), f"cannot be written: {error}") from error
    typer.echo(f"wrote {path}", err=True)

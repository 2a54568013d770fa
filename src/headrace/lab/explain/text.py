"""The story as text for a terminal, 100 columns wide. Prints as it goes: a long recording needs no memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields

from rich.console import Console
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from headrace.contract.errors import RecordingError
from headrace.obs.recording import Recording

from .packing import pack
from .reasons import plain
from .story import Counts, Happening, SliceStory, StepStory
from .teller import Teller

WIDTH = 100
PACKING_ROWS = 64  # beyond that a packing is not read by anyone

_STYLES = {"prefill": "cyan", "decode": "green", "verify": "magenta"}

Name = Callable[[int], str]


def print_recording(recording: Recording, first: int, last: int, console: Console) -> None:
    """Steps ``first`` .. ``last``; a single step with its packing. Raises RecordingError."""
    _print_head(recording, console)
    teller = Teller(recording, first, last)
    block_size = _block_size(recording)
    for step in teller.steps():
        _print_step(step, _namer(recording), console)
        if first == last and 0 < step.num_scheduled <= PACKING_ROWS:
            _print_packing(step, block_size, console)
    if teller.happenings:
        console.print(Rule("after the last step told", align="left", style="dim"))
        _print_happenings(teller.happenings, _namer(recording), console)
    if recording.truncated:
        console.print(Text("The recording's last line was cut off and is left out.", style="yellow"))
    if teller.difference is not None:
        console.print(
            Text(f"Replay differs from the recording, so the story ends here. {teller.difference}", style="red")
        )


def _block_size(recording: Recording) -> int:
    size = recording.config.core.get("block_size", 32)
    if type(size) is not int or size < 1:
        raise RecordingError(recording.path, 1, f"core.block_size must be a positive whole number, not {size!r}")
    return size


def _namer(recording: Recording) -> Name:
    return lambda seq_id: plain(recording.name(seq_id))


def _print_head(recording: Recording, console: Console) -> None:
    config = recording.config
    if config.title:
        console.print(Text(plain(config.title), style="bold"))
    knobs = ", ".join(f"{name} {value}" for name, value in config.core.items())
    version = plain(config.headrace)
    words = f"{_amount(recording.num_steps, 'step')}, recorded by headrace {version}; {plain(knobs)}"
    console.print(Text(words))


def _print_step(step: StepStory, name: Name, console: Console) -> None:
    console.print()
    title = f"step {step.step}" if step.step >= 0 else "a plan with nothing to run"
    size = f"{_amount(step.num_scheduled, 'token')} in {_amount(len(step.slices), 'slice')}"
    console.print(Rule(Text(f"{title} · {size}"), align="left"))
    _print_happenings(step.happenings, name, console)
    if step.slices:
        console.print(_counts_table(step, name))
    for piece in step.slices:
        console.print(_slice_line(piece, name))
    for note in step.notes:
        who = "queue" if note.seq_id < 0 else name(note.seq_id)
        console.print(_indented(note.why, "yellow", who))
    console.print(_foot(step, name))


def _amount(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _print_happenings(happenings: Sequence[Happening], name: Name, console: Console) -> None:
    for what in happenings:
        who = f"{name(what.seq_id)} " if what.seq_id >= 0 else ""
        style = "red" if what.kind == "fail" else "dim"
        console.print(_indented(f"{what.t:.6f} s  {who}{what.text}", style))


def _counts_table(step: StepStory, name: Name) -> Table:
    """Counts before the plan → after it → after the result; ``left``: both budgets after the slice."""
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim", expand=False)
    table.add_column("  sequence")
    table.add_column("what")
    for title in ("given", "positions", "computed", "tokens", "in flight", "promised", "left"):
        table.add_column(title, justify="right", no_wrap=True)
    for piece in step.slices:
        end = piece.first_position + piece.num_scheduled - 1
        row = [
            f"{piece.num_scheduled}/{piece.need}",
            f"{piece.first_position}–{end}" if piece.num_scheduled > 1 else str(end),
            *(_moments(piece, field) for field in ("num_computed", "num_tokens", "num_in_flight", "num_promised")),
            f"{piece.token_budget_left}/{piece.input_budget_left}",
        ]
        what = Text(piece.kind, style=_STYLES[piece.kind])
        table.add_row(Text(f"  {name(piece.seq_id)}", style="bold"), what, *map(Text, row))
    return table


def _moments(piece: SliceStory, field: str) -> str:
    moments: list[Counts | None] = [piece.before, piece.planned]
    if piece.outcome is not None or piece.returned is not None:
        moments.append(piece.returned)
    return "→".join("·" if counts is None else str(getattr(counts, field)) for counts in moments)


def _indented(text: str, style: str = "", who: str = "") -> Padding:
    return Padding(Text.assemble((who and f"{who}: ", "bold"), text, style=style), (0, 0, 0, 2), expand=False)


def _slice_line(piece: SliceStory, name: Name) -> Padding:
    parts = [piece.why]
    if piece.num_drafts:
        parts.append(f"{piece.num_drafts} drafts")
    parts.append("blocks " + ", ".join(_table_text(*pair) for pair in zip(piece.tables, piece.block_starts)))
    parts.append(piece.result or "its result is not in")
    return _indented("; ".join(parts), who=name(piece.seq_id))


def _table_text(table: Sequence[int], first_new: int, limit: int = 12) -> str:
    """A block table; new blocks carry a plus, long old parts are cut."""
    cut = max(0, min(first_new, len(table) - limit))
    cells = [f"+{block}" if i >= first_new else str(block) for i, block in enumerate(table)][cut:]
    if len(cells) > limit:
        cells = [*cells[:limit], f"… {len(cells) - limit} more"]
    return f"[{'… ' if cut else ''}{', '.join(cells)}]"


def _foot(step: StepStory, name: Name) -> Padding:
    free = ", ".join(map(str, step.free_queue)) + (", …" if step.num_free_blocks > len(step.free_queue) else "")
    parts = [
        f"left {step.token_budget_left} of {step.token_budget} tokens",
        f"{step.input_budget_left} of {step.input_budget} inputs",
        f"{step.num_free_blocks} blocks free [{free}]",
        f"running {_names(step.running, name)}",
        f"waiting {_names(step.waiting, name)}",
    ]
    if step.outcome == "fail":
        parts.append(f"FAILED: {step.message}")
    elif step.t_returned is not None:
        parts.append(f"returned after {(step.t_returned - step.t) * 1e3:.3f} ms")
    elif step.step >= 0:
        parts.append("its result is not in the recording")
    return _indented("; ".join(parts), "red" if step.outcome == "fail" else "dim")


def _names(seq_ids: Sequence[int], name: Name, limit: int = 8) -> str:
    more = f" and {len(seq_ids) - limit} more" if len(seq_ids) > limit else ""
    return (" ".join(map(name, seq_ids[:limit])) + more) or "none"


def _print_packing(step: StepStory, block_size: int, console: Console) -> None:
    packing = pack(step, block_size)
    for field in fields(packing):
        values = ", ".join(map(str, getattr(packing, field.name)))
        console.print(_indented(f"{field.name:<16} [{values}]"))

"""The story as one HTML page that needs nothing else: style and script inline, no network, no build step.

Recorded text reaches the page only as JSON with every ``<`` escaped, and the script writes it with
``textContent``; nothing recorded is ever parsed as markup. Block tables travel as differences, so thousands
of steps stay small.
"""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

import msgspec

from headrace.obs.events import Planned
from headrace.obs.recording import Recording

from .story import Counts, SliceStory, StepStory, Story

MAX_SLICES = 20_000  # slices in one page: about 6 MB
MAX_WAITING = 100  # waiting sequences named per step

_ASSETS = Path(__file__).parent / "assets"
_SCRIPTS = ("base.js", "timeline.js", "step.js", "moves.js")


def page_range(recording: Recording, first: int, last: int) -> tuple[int, int]:
    """The steps from ``first`` on, at most to ``last``, that one page can hold."""
    slices = 0
    for event in recording.events:
        if isinstance(event, Planned) and first <= event.step <= last:
            slices += len(event.seq_ids)
            if slices > MAX_SLICES:
                return first, max(first, event.step - 1)
    return first, last


def render(story: Story) -> str:
    """The page as text."""
    template = (_ASSETS / "page.html").read_text(encoding="utf-8")
    parts = {
        "TITLE": escape(story.title or Path(story.path).name),
        "STYLE": (_ASSETS / "page.css").read_text(encoding="utf-8"),
        "SCRIPT": "\n".join((_ASSETS / name).read_text(encoding="utf-8") for name in _SCRIPTS),
        "DATA": _json_for_script(page_data(story)),
    }
    pieces = template.split("@@")
    return "".join(parts[piece] if i % 2 else piece for i, piece in enumerate(pieces))


def _json_for_script(data: Any) -> str:
    """JSON that cannot end the script element it stands in: inside JSON, ``<`` occurs in strings only."""
    return msgspec.json.encode(data).decode().replace("<", "\\u003c")


def page_data(story: Story) -> dict[str, Any]:
    """What the script needs, short: counts as rows of five, tables as what is new in them."""
    data = {name: getattr(story, name) for name in ("title", "headrace", "time", "core", "names", "held")}
    return {
        **data,
        "file": Path(story.path).name,
        "numBlocks": story.num_blocks,
        "numSteps": story.num_steps,
        "truncated": story.truncated,
        "difference": story.difference,
        "after": story.happenings_after,
        "steps": [_step(step) for step in story.steps],
    }


def _step(step: StepStory) -> dict[str, Any]:
    same = ("step", "t", "running", "notes", "happenings", "outcome", "message")
    return {
        **{name: getattr(step, name) for name in same},
        "waiting": step.waiting[:MAX_WAITING],
        "numWaiting": len(step.waiting),
        "back": step.t_returned,
        "budget": [step.token_budget, step.input_budget],
        "left": [step.token_budget_left, step.input_budget_left],
        "free": step.num_free_blocks,
        "next": step.free_queue,
        "slices": [_slice(piece) for piece in step.slices],
    }


def _slice(piece: SliceStory) -> dict[str, Any]:
    moments = [piece.before, piece.planned, piece.returned]
    return {
        "id": piece.seq_id,
        "kind": piece.kind,
        "from": piece.first_position,
        "need": piece.need,
        "q": piece.num_scheduled,
        "why": piece.why,
        "cached": piece.num_cached,
        "fresh": piece.fresh,
        "left": [piece.token_budget_left, piece.input_budget_left],
        "counts": [None if counts is None else _row(counts) for counts in moments],
        "start": piece.block_starts,
        "blocks": [table[start:] for table, start in zip(piece.tables, piece.block_starts)],
        "passed": [_leading_holes(table) for table in piece.tables],
        "outcome": piece.outcome,
        "result": piece.result,
        "finish": piece.finish,
    }


def _row(counts: Counts) -> list[int]:
    return [getattr(counts, name) for name in Counts.__struct_fields__]


def _leading_holes(table: list[int]) -> int:
    """Blocks that a sliding window has passed."""
    return next((i for i, block in enumerate(table) if block), len(table))

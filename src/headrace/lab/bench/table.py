"""A comparison as a table: who is ahead in each row, by how much, and what each engine's rounding costs in accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .contenders import EXACT, OWN
from .machine import describe

TOLERANCE = 1.01
NOT_RANKED = ("perplexity",)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of one row: the best contender of ours, the best peer that is accurate enough, and ours over theirs.

    ``ratio`` above 1 means that ours is ahead, whichever direction is better.
    """

    ours: str
    peer: str
    ratio: float

    @property
    def words(self) -> str:
        ahead = self.ours if self.ratio >= 1 else self.peer
        return f"{ahead}; ours is {self.ratio:.2f} x {self.peer}"


def accurate(comparison: dict[str, Any]) -> dict[str, bool | None]:
    """By contender: perplexity within 1 % of the dequantised weights' in float32; None when that is not known."""
    cells = comparison["cells"].get("perplexity", {})
    exact = _median(cells.get(EXACT))
    names = {name for row in comparison["cells"].values() for name in row}
    values = {name: _median(cells.get(name)) for name in names}
    return {
        name: None if value is None or exact is None else value <= TOLERANCE * exact for name, value in values.items()
    }


def verdict(comparison: dict[str, Any], task: str) -> Verdict | None:
    """None when no one of ours, or no peer of known sufficient accuracy, has a figure."""
    good, more = accurate(comparison), comparison["more_is_better"][task]
    medians = {name: value for name, cell in comparison["cells"][task].items() if (value := _median(cell)) is not None}
    ours = {name: value for name, value in medians.items() if name.startswith(OWN) and good[name] is not False}
    peers = {name: value for name, value in medians.items() if not name.startswith(OWN) and good[name] is not False}
    if not ours or not peers or task in NOT_RANKED:
        return None
    best = max if more else min
    mine, theirs = best(ours, key=ours.__getitem__), best(peers, key=peers.__getitem__)
    ratio = ours[mine] / peers[theirs]
    return Verdict(mine, theirs, ratio if more else 1 / ratio)


def _median(cell: dict[str, Any] | None) -> float | None:
    return cell["value"]["median"] if cell and cell["value"] else None


def grid(comparison: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Headings and rows of text. A dagger marks contenders whose perplexity is more than 1 % off."""
    names = list(dict.fromkeys(name for row in comparison["cells"].values() for name in row))
    good = accurate(comparison)
    headings = ["", "unit", *(name + (" †" if good[name] is False else "") for name in names), "ahead"]
    rows = []
    for task, cells in comparison["cells"].items():
        decided = verdict(comparison, task)
        figures = [cell_text(cells.get(name)) for name in names]
        rows.append([task, comparison["units"][task], *figures, decided.words if decided else ""])
    return headings, rows


def cell_text(cell: dict[str, Any] | None) -> str:
    """``median (smallest-largest)``, or a dash."""
    if not cell or not cell["value"]:
        return "–"
    value = cell["value"]
    text = figure(value["median"])
    return text if value["runs"] < 2 else f"{text} ({figure(value['low'])}–{figure(value['high'])})"


def figure(value: float) -> str:
    """Three significant digits; large numbers whole."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def reasons(comparison: dict[str, Any]) -> list[str]:
    """Why figures are missing, each reason once per contender."""
    found: dict[tuple[str, str], list[str]] = {}
    for task, cells in comparison["cells"].items():
        for name, cell in cells.items():
            if not cell["value"]:
                found.setdefault((name, cell["why_not"]), []).append(task)
    total = len(comparison["cells"])
    return [
        f"{name}: {'nothing' if len(tasks) == total else 'no ' + '; no '.join(tasks)}: {why}"
        for (name, why), tasks in found.items()
    ]


def markdown(comparison: dict[str, Any]) -> str:
    """The table with what it depends on: machine, date, versions, missing figures."""
    headings, rows = grid(comparison)
    lines = [f"{_measured_on(comparison)}.", ""]
    lines += [_line(headings), _line(["---", "---", *("---:" for _ in headings[2:-1]), "---"])]
    lines += [_line(row) for row in rows]
    lines += ["", "Medians, in brackets the smallest and the largest of the runs."]
    lines += ["† perplexity more than 1 % above the dequantised weights' in float32; such figures are not ranked.", ""]
    lines += [f"- {name}: {version}" for name, version in comparison["versions"].items()]
    lines += [f"- missing: {_inline(reason)}" for reason in reasons(comparison)]
    return "\n".join(lines) + "\n"


def brief(comparison: dict[str, Any]) -> str:
    """The comparison in short: by row the best of ours, the best peer that is accurate enough, and their ratio."""
    lines = [f"{_measured_on(comparison)}. Medians.", ""]
    lines += [_line(["", "unit", "headrace", "best peer", "headrace ahead by"]), "| --- | --- | --- | --- | ---: |"]
    for task, cells in comparison["cells"].items():
        decided = verdict(comparison, task)
        if decided is not None:
            ours, peer = (f"{_best(cells, name)} ({name})" for name in (decided.ours, decided.peer))
            behind = "" if decided.ratio >= 1 else " (behind)"
            lines.append(_line([task, comparison["units"][task], ours, peer, f"{decided.ratio:.2f}×{behind}"]))
    return "\n".join(lines) + "\n"


def _measured_on(comparison: dict[str, Any]) -> str:
    return f"Measured on: {describe(comparison['machine'])}; {comparison['threads']} threads each"


def _best(cells: dict[str, Any], name: str) -> str:
    return figure(cells[name]["value"]["median"])


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_inline(cell) for cell in cells) + " |"


def _inline(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")

"""A benchmark's report as a Markdown table, for the document that explains the figures. Says what was measured on and
with which settings; judges nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .machine import describe
from .table import figure


def listed(report: dict[str, Any]) -> str:
    """One line per figure: median, extremes, remark."""
    rows = [
        [
            row["what"],
            *_figures(row["value"]),
            row["unit"],
            str(row["value"]["runs"] if row["value"] else ""),
            row["note"],
        ]
        for row in report["rows"]
    ]
    headings = ["", "median", "smallest–largest", "unit", "runs", "remark"]
    return _whole(report, headings, ["---", "---:", "---:", "---", "---:", "---"], rows)


def side_by_side(report: dict[str, Any]) -> str:
    """One column per contender, for rows named ``contender: quantity``; a quantity that one lacks is a dash there."""
    cells: dict[str, dict[str, str]] = {}
    remarks: dict[str, str] = {}
    for row in report["rows"]:
        contender, _, what = row["what"].partition(": ")
        median, extremes = _figures(row["value"])
        cells.setdefault(f"{what}, {row['unit']}", {})[contender] = f"{median} ({extremes})" if extremes else median
        if row["note"]:
            remarks[contender] = row["note"]
    names = list(dict.fromkeys(name for row in cells.values() for name in row))
    rows = [[what, *(row.get(name, "–") for name in names)] for what, row in cells.items()]
    table = _whole(report, ["", *names], ["---", *("---:" for _ in names)], rows)
    return table + "".join(f"\n{name}: {remark}.\n" for name, remark in remarks.items())


def _whole(report: dict[str, Any], headings: Sequence[str], rules: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    settings = ", ".join(f"{name} {_plain(value)}" for name, value in report["settings"].items())
    lines = [f"Measured on: {describe(report['machine'])}.", f"With: {settings}.", ""]
    lines += [_line(headings), _line(rules), *(_line(row) for row in rows)]
    return "\n".join(lines) + "\n"


def _figures(value: dict[str, Any] | None) -> tuple[str, str]:
    """(median, extremes); no extremes of a single run."""
    if not value:
        return "–", ""
    extremes = f"{figure(value['low'])}–{figure(value['high'])}" if value["runs"] > 1 else ""
    return figure(value["median"]), extremes


def _plain(value: Any) -> str:
    return "/".join(map(str, value)) if isinstance(value, list) else str(value)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"

"""Writing to the user. Results go to stdout, remarks to stderr; a terminal never gets raw control characters."""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Sequence
from typing import Any

KEPT_CONTROLS = "\n\t"
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def printable(text: str) -> str:
    """``text`` without control characters other than line feeds and tabs: they could repaint a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c in KEPT_CONTROLS or unicodedata.category(c) != "Cc" else "\ufffd" for c in text)


def to_stdout(text: str) -> None:
    """Writes at once, as it is; cleaned when a terminal reads it."""
    sys.stdout.write(printable(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def to_stderr(line: str) -> None:
    """One remark."""
    sys.stderr.write(printable(line) + "\n")
    sys.stderr.flush()


def print_json(value: Any) -> None:
    """One line of JSON on stdout."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def print_table(headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """A table on stdout; numbers stand right. Nothing is cut off when the output is not a terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for i, heading in enumerate(headings):
        numeric = bool(rows) and all(isinstance(row[i], int | float) for row in rows)
        table.add_column(heading, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(_cell(value))) for value in row))
    on_terminal = sys.stdout.isatty()
    Console(file=sys.stdout, width=None if on_terminal else 400, highlight=False).print(table)


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.1f}" if isinstance(value, float) else str(value)


def bytes_text(count: float) -> str:
    """``1536`` as ``1.5 KiB``."""
    for unit in UNITS[:-1]:
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} {UNITS[-1]}"

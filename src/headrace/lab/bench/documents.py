"""Puts a comparison's table into documents, between two marker lines; touches nothing else in them.

Two kinds of markers: the whole table, every contender in every row, or the short one with the verdicts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.contract.errors import ConfigError

from .table import brief, markdown


@dataclass(frozen=True, slots=True)
class Place:
    """Where a table goes: between ``begin`` and ``end``."""

    begin: str
    end: str
    table: Callable[[dict[str, Any]], str]

    def holds(self, text: str) -> bool:
        return text.count(self.begin) == text.count(self.end) == 1 and text.index(self.begin) < text.index(self.end)


WHOLE = Place("<!-- bench peers: begin -->", "<!-- bench peers: end -->", markdown)
BRIEF = Place("<!-- bench peers, in short: begin -->", "<!-- bench peers, in short: end -->", brief)


def check_document(document: Path) -> tuple[str, Place]:
    """The document's text and the place in it. Raises ConfigError when it lacks the markers."""
    if not document.is_file():
        raise ConfigError("table", f"{document} is not a file")
    text = document.read_text("utf-8")
    for place in (WHOLE, BRIEF):
        if place.holds(text):
            return text, place
    raise ConfigError(
        "table",
        f"{document} must hold {WHOLE.begin} and {WHOLE.end} (or, for the short table, {BRIEF.begin} and {BRIEF.end}), "
        "each once and in this order",
    )


def insert(document: Path, comparison: dict[str, Any]) -> None:
    """Puts the comparison's table between the two markers of ``document``. Raises ConfigError when it lacks them."""
    text, place = check_document(document)
    before, after = text[: text.index(place.begin)], text[text.index(place.end) :]
    document.write_text(f"{before}{place.begin}\n{place.table(comparison)}{after}", "utf-8")

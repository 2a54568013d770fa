"""Puts a benchmark's table into documents, between two marker lines; touches nothing else in them.

The markers name the benchmark. The comparison with peers has two kinds: the whole table, every contender in every row,
or the short one with the verdicts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.contract.errors import ConfigError

from .report_table import listed, side_by_side
from .table import brief, markdown


@dataclass(frozen=True, slots=True)
class Place:
    """Where a table goes: between ``begin`` and ``end``."""

    begin: str
    end: str
    table: Callable[[dict[str, Any]], str]

    def holds(self, text: str) -> bool:
        return text.count(self.begin) == text.count(self.end) == 1 and text.index(self.begin) < text.index(self.end)


def _place(name: str, table: Callable[[dict[str, Any]], str]) -> Place:
    return Place(f"<!-- bench {name}: begin -->", f"<!-- bench {name}: end -->", table)


WHOLE = _place("peers", markdown)
BRIEF = _place("peers, in short", brief)
PEERS = (WHOLE, BRIEF)
SIDE_BY_SIDE = ("trace", "edge", "verification")
"""Benchmarks whose rows are named ``contender: quantity``."""


def places_of(bench: str) -> tuple[Place, ...]:
    """Where the report of a benchmark goes."""
    return (_place(bench, side_by_side if bench in SIDE_BY_SIDE else listed),)


def check_document(document: Path, places: Sequence[Place] = PEERS) -> tuple[str, Place]:
    """The document's text and the place in it. Raises ConfigError when it lacks the markers."""
    if not document.is_file():
        raise ConfigError("table", f"{document} is not a file")
    text = document.read_text("utf-8")
    for place in places:
        if place.holds(text):
            return text, place
    pairs = ", or ".join(f"{place.begin} and {place.end}" for place in places)
    raise ConfigError("table", f"{document} must hold {pairs}, each once and in this order")


def insert(document: Path, result: dict[str, Any], places: Sequence[Place] = PEERS) -> None:
    """Puts the result's table between the two markers of ``document``. Raises ConfigError when it lacks them."""
    text, place = check_document(document, places)
    before, after = text[: text.index(place.begin)], text[text.index(place.end) :]
    document.write_text(f"{before}{place.begin}\n{place.table(result)}{after}", "utf-8")


def insert_text(document: Path, name: str, text: str) -> None:
    """Puts ``text`` between the markers of ``name``. Raises ConfigError when the document lacks them."""
    insert(document, {}, (_place(name, lambda _: text),))


def check_text(document: Path, name: str) -> None:
    """Raises ConfigError, before any work, for a document without the markers of ``name``."""
    check_document(document, (_place(name, lambda _: ""),))

"""What a benchmark says: rows of figures with their spread and the machine's limit, and curves to plot.

Plain data. Printing, plotting and judging happen elsewhere.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from .machine import machine_facts, peak_rss_bytes
from .stats import Spread


@dataclass(frozen=True, slots=True)
class Row:
    """One figure. ``limit`` is what this machine could do at most, in the same unit; ``limit_of`` says why.

    ``value`` None means that nothing was measured; ``note`` then says the reason.
    """

    what: str
    unit: str
    value: Spread | None
    limit: float | None = None
    limit_of: str = ""
    note: str = ""

    @property
    def share(self) -> float | None:
        """The share of the limit that was reached, whichever direction is better."""
        if self.value is None or not self.limit:
            return None
        ratio = self.value.median / self.limit
        return 1 / ratio if self.unit in ("s", "ms", "us") else ratio

    def plain(self) -> dict[str, Any]:
        return asdict(self) | {"share": self.share}


@dataclass(frozen=True, slots=True)
class Curve:
    """Points for a plot, and how to label its axes."""

    title: str
    x_name: str
    y_name: str
    points: list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Bars:
    """Parts of a whole for a plot: (label, value) in the order to draw them."""

    title: str
    unit: str
    parts: list[tuple[str, float]]


@dataclass(slots=True)
class Report:
    """A finished benchmark. Facts and peak memory are taken by ``finish``."""

    bench: str
    settings: dict[str, Any]
    rows: list[Row] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)
    bars: list[Bars] = field(default_factory=list)
    machine: dict[str, Any] = field(default_factory=dict)
    peak_rss_bytes: int = 0

    def add(
        self,
        what: str,
        unit: str,
        value: Spread | None,
        *,
        limit: float | None = None,
        limit_of: str = "",
        note: str = "",
    ) -> None:
        self.rows.append(Row(what, unit, value, limit, limit_of, note))

    def finish(self) -> Report:
        self.machine = machine_facts()
        self.peak_rss_bytes = peak_rss_bytes()
        return self

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "bench": self.bench,
            "machine": self.machine,
            "settings": self.settings,
            "peak_rss_bytes": self.peak_rss_bytes,
            "rows": [row.plain() for row in self.rows],
            "curves": [asdict(curve) for curve in self.curves],
            "bars": [asdict(bars) for bars in self.bars],
        }

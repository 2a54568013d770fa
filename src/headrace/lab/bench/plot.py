"""Curves and bars of a report as a PNG. The only file that needs matplotlib (the ``bench`` extra)."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.contract.errors import ConfigError

from .report import Bars, Curve, Report


def check_plot(path: Path) -> None:
    """Refuses, before anything is measured, a plot that could not be written. Raises ConfigError."""
    if path.suffix.lower() != ".png":
        raise ConfigError("plot", f"{path} must end in .png")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        command = shlex.join([sys.executable, "-m", "pip", "install", "matplotlib>=3.9"])
        raise ConfigError("plot", f"needs matplotlib: {command}") from None


def save_plot(report: Report, path: Path) -> None:
    """One panel per curve or bar chart. Raises ConfigError when the report has none."""
    panels: list[Curve | Bars] = [*(curve for curve in report.curves if curve.points), *report.bars]
    if not panels:
        raise ConfigError("plot", f"the {report.bench} benchmark has no curve")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.5 * len(panels), 4.2), layout="constrained")
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels):
        if isinstance(panel, Curve):
            _draw_curve(axes, panel)
        else:
            _draw_bars(axes, panel)
    figure.suptitle(f"{report.machine.get('cpu', '')}, {report.machine.get('date', '')}", fontsize=9)
    figure.savefig(path, dpi=120)


def save_lines(lines: Mapping[str, Sequence[tuple[float, float]]], path: Path, x_name: str, y_name: str) -> None:
    """Several named curves over a logarithmic x in one panel."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.6), layout="constrained")
    axes = figure.subplots()
    for name, points in lines.items():
        axes.plot(*zip(*points), marker="o", label=name)
    axes.set(xlabel=x_name, ylabel=y_name, xscale="log")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)


def _draw_curve(axes: Any, curve: Curve) -> None:
    axes.plot(*zip(*curve.points), marker="o")
    axes.set(title=curve.title, xlabel=curve.x_name, ylabel=curve.y_name)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)


def _draw_bars(axes: Any, bars: Bars) -> None:
    """The first part on top, each with its share of the whole."""
    labels, values = zip(*bars.parts)
    drawn = axes.barh(range(len(values)), values)
    axes.set_yticks(range(len(labels)), labels, fontsize=8)
    axes.invert_yaxis()
    whole = sum(values) or 1.0
    axes.bar_label(drawn, [f"{value / whole:.0%}" for value in values], fontsize=8, padding=2)
    axes.set(title=f"{bars.title}: {whole:.3g} {bars.unit}", xlabel=bars.unit)
    axes.margins(x=0.12)

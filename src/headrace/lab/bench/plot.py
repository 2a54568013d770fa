"""Curves of a report as a PNG. The only file that needs matplotlib (the ``bench`` extra)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from headrace.contract.errors import ConfigError

from .report import Report


def check_plot(path: Path) -> None:
    """Refuses, before anything is measured, a plot that could not be written. Raises ConfigError."""
    if path.suffix.lower() != ".png":
        raise ConfigError("plot", f"{path} must end in .png")
    if not path.absolute().parent.is_dir():
        raise ConfigError("plot", f"{path.absolute().parent} is not a folder")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ConfigError("plot", "needs matplotlib: pip install 'headrace[bench]'") from None


def save_plot(report: Report, path: Path) -> None:
    """One panel per curve. Raises ConfigError when the report has none."""
    curves = [curve for curve in report.curves if curve.points]
    if not curves:
        raise ConfigError("plot", f"the {report.bench} benchmark has no curve")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.5 * len(curves), 4.2), layout="constrained")
    for axes, curve in zip(figure.subplots(1, len(curves), squeeze=False)[0], curves):
        axes.plot(*zip(*curve.points), marker="o")
        axes.set(title=curve.title, xlabel=curve.x_name, ylabel=curve.y_name)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
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

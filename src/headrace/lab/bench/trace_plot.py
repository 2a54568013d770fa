"""The trace benchmark's curves as a PNG: one panel per quantity, one line per discipline."""

from __future__ import annotations

from pathlib import Path

from .report import Curve, Report


def save_trace_plot(report: Report, path: Path) -> None:
    """Needs matplotlib (``plot.check_plot`` says so before anything is measured)."""
    from matplotlib.figure import Figure

    panels: dict[str, list[tuple[str, Curve]]] = {}
    for curve in report.curves:
        discipline, _, what = curve.title.partition(": ")
        panels.setdefault(what, []).append((discipline, curve))
    figure = Figure(figsize=(5.0 * len(panels), 4.2), layout="constrained")
    for axes, (what, curves) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items()):
        for discipline, curve in curves:
            axes.plot(*zip(*curve.points), marker="o", label=discipline)
        axes.set(title=what, xlabel=curves[0][1].x_name, ylabel=curves[0][1].y_name, yscale="log")
        axes.grid(alpha=0.3, which="both")
        axes.legend()
    figure.suptitle(f"{report.machine.get('cpu', '')}, {report.machine.get('date', '')}", fontsize=9)
    figure.savefig(path, dpi=120)

"""Reports as Markdown: one line per figure, or contenders beside one another."""

from __future__ import annotations

from headrace.lab.bench.report import Report
from headrace.lab.bench.report_table import listed, side_by_side
from headrace.lab.bench.stats import spread


def test_one_line_per_figure() -> None:
    report = Report("x", {"rows": [1, 8], "model": "m"})
    report.add("decode | fast", "tok/s", spread([1.0, 2.0, 4.0]), note="two\nlines")
    report.add("nothing", "s", None, note="why not")
    lines = listed(report.finish().plain()).splitlines()
    assert lines[1] == "With: rows 1/8, model m."
    assert lines[-2] == "| decode \\| fast | 2 | 1–4 | tok/s | 3 | two lines |"
    assert lines[-1] == "| nothing | – |  | s |  | why not |"


def test_contenders_side_by_side() -> None:
    report = Report("trace", {})
    report.add("mixed: throughput", "tok/s", spread([5.0]))
    report.add("mixed: gaps", "ms", spread([1.0, 3.0]))
    report.add("voted: throughput", "tok/s", spread([4.0]), note="3 votes")
    text = side_by_side(report.finish().plain())
    assert "|  | mixed | voted |\n| --- | ---: | ---: |\n" in text
    assert "| throughput, tok/s | 5 | 4 |\n| gaps, ms | 2 (1–3) | – |\n" in text
    assert text.endswith("\nvoted: 3 votes.\n")

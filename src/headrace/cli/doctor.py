"""``headrace doctor``: whether this machine can run models, and with what."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from headrace.kernels.placement import default_threads, fill_order
from headrace.kernels.topology import usable

from .checks import run_checks
from .console import print_json, print_table, to_stdout
from .flags import ReportFlags, flagged

Ops = Annotated[bool, typer.Option("--ops", help="Show which op runs on which backend and instruction set.")]
Processors = Annotated[
    bool, typer.Option("--topology", help="Show processors in the order in which threads take them.")
]
Offline = Annotated[bool, typer.Option("--offline", help="Do not look whether the package index answers.")]


@flagged
def doctor(report: ReportFlags, ops: Ops = False, topology: Processors = False, offline: Offline = False) -> None:
    """Check this installation. Exits with 1 when something that models need is broken."""
    if ops:
        _show_ops(report)
        return
    if topology:
        _show_topology(report)
        return
    findings = run_checks(offline)
    healthy = all(finding.status != "broken" for finding in findings)
    if report.as_json:
        print_json({"ok": healthy, "checks": [asdict(finding) for finding in findings]})
    else:
        print_table(("", "what", "found"), [[f.status, f.name, f.words] for f in findings])
    if not healthy:
        raise typer.Exit(1)


def _show_ops(report: ReportFlags) -> None:
    """The support matrix: one row per op, one column per backend and instruction set."""
    from headrace.kernels.case_reports import support_matrix

    entries = support_matrix()
    if report.as_json:
        print_json(entries)
        return
    columns = list(dict.fromkeys((entry["backend"], entry["isa"]) for entry in entries))
    rows: dict[str, dict[Any, str]] = {}
    for entry in entries:
        row = rows.setdefault(entry["op"], {"cases": str(entry["cases"])})
        row[entry["backend"], entry["isa"]] = "yes" if entry["supported"] else "reference"
    headings = ["op", "cases", *(f"{backend} {isa}".removesuffix(" -") for backend, isa in columns)]
    print_table(headings, [[op, row["cases"], *(row[column] for column in columns)] for op, row in rows.items()])


def _show_topology(report: ReportFlags) -> None:
    """One row per processor this process may use, and the caches as the first of them sees them."""
    found = usable()
    order = fill_order(found)
    if report.as_json:
        facts = {"processors": [asdict(p) for p in order], "caches": [asdict(c) for c in found.caches]}
        print_json({**facts, "quota": found.quota, "threads": default_threads(found)})
        return
    rows = [[str(value) for value in (p.id, p.package, p.node, p.core, p.thread)] for p in order]
    print_table(("processor", "package", "memory node", "core", "thread of the core"), rows)
    for cache in found.caches:
        to_stdout(f"L{cache.level} {cache.kind}: {cache.size_bytes >> 10} KiB, shared by {cache.sharers}\n")

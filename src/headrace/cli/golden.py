"""``headrace golden``: compare a model's answers with what they were, to the bit; or say why they may change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.config import EngineConfig
from headrace.contract.errors import ConfigError

from .console import print_json, print_table, to_stderr
from .flags import EngineFlags, ReportFlags, flagged
from .guard import EngineCommand

if TYPE_CHECKING:
    from headrace.lab.golden.actions import Checked

Folder = Annotated[Path | None, typer.Option(help="Where baselines are. Default: those that came with Headrace.")]
Group = Annotated[str | None, typer.Option(help="Only perplexity, tokens or long.")]
Rank = Annotated[int, typer.Option(help="Compare only what this rank owns: sample index modulo --world.")]
World = Annotated[int, typer.Option(help="How many ranks share the samples.")]
Candidate = Annotated[Path | None, typer.Option(help="Write what was measured to this file; whole or not at all.")]
Why = Annotated[str, typer.Option("--reason", help="Why answers may change; kept in the file.")]
Tiny = Annotated[bool, typer.Option("--tiny", help="The small model with dummy weights that comes with Headrace.")]
Free = Annotated[bool, typer.Option("--free", help="Without the deterministic mode; has baselines of its own.")]


def golden_app() -> typer.Typer:
    """The group of commands."""
    app = typer.Typer(no_args_is_help=True, help="Compare answers with what they were, to the bit.")
    app.callback()(_group)
    app.command("check", cls=EngineCommand)(check)
    app.command("refresh", cls=EngineCommand)(refresh)
    return app


def _group() -> None:
    """Compare answers with what they were, to the bit."""


@flagged
def check(
    engine: EngineFlags,
    report: ReportFlags,
    folder: Folder = None,
    group: Group = None,
    rank: Rank = 0,
    world: World = 1,
    candidate: Candidate = None,
    tiny: Tiny = False,
    free: Free = False,
) -> None:
    """Compare with the baseline of this model, platform and mode. Exits with 1 when anything differs."""
    from headrace.lab.golden.actions import check
    from headrace.lab.golden.suite import Share

    if candidate is not None and not candidate.absolute().parent.is_dir():
        raise ConfigError("candidate", f"{candidate.absolute().parent} is not a folder")
    checked = check(_config(engine, tiny, free), _folder(folder), Share(group, rank, world), candidate)
    _show(checked, report)
    to_stderr(f"{checked.key.words}: {_verdict(checked)}")
    if checked.differences:
        raise typer.Exit(1)


@flagged
def refresh(
    engine: EngineFlags, report: ReportFlags, reason: Why, folder: Folder = None, tiny: Tiny = False, free: Free = False
) -> None:
    """Measure every sample and make that the baseline. Shows what changed."""
    from headrace.lab.golden.actions import refresh

    checked = refresh(_config(engine, tiny, free), _folder(folder), reason)
    _show(checked, report)
    to_stderr(f"{checked.path}: {checked.total} samples written, {len(checked.differences)} differences")


def _config(engine: EngineFlags, tiny: bool, free: bool) -> EngineConfig:
    if tiny:
        from headrace.lab.golden.suite import TINY

        if engine.model is not None:
            raise ConfigError("model", "give a model or --tiny, not both")
        engine = replace(engine, model=f"dummy:{TINY}", kv_memory=engine.kv_memory or "64MiB")
    config = engine.resolve()
    return replace(config, runtime=replace(config.runtime, deterministic=not free))


def _folder(folder: Path | None) -> Path:
    from headrace.lab.golden.baseline import SHIPPED

    return SHIPPED if folder is None else folder


def _verdict(checked: Checked) -> str:
    counted = f"{checked.compared} of {checked.total} samples compared"
    return f"{counted}, {len(checked.differences)} differences" if checked.differences else f"{counted}, all equal"


def _show(checked: Checked, report: ReportFlags) -> None:
    if report.as_json:
        print_json(checked.plain())
    elif checked.differences:
        rows = [[d.sample, d.what, d.baseline, d.found] for d in checked.differences]
        print_table(["sample", "what", "baseline", "found"], rows)

"""``--help`` of every command on a narrow terminal: all names and words stand whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from headrace.cli.main import build_app

ROOT = typer.main.get_command(build_app())


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    for name, under in getattr(command, "commands", {}).items():
        yield from commands(under, (*path, name))


@pytest.mark.parametrize("columns", [60, 80])
def test_no_name_is_cut(columns: int) -> None:
    found = dict(commands(ROOT))
    assert {("serve",), ("bench", "serve"), ("tenants", "add")} <= set(found)
    for path, command in found.items():
        told = CliRunner(env={"COLUMNS": str(columns)}).invoke(build_app(), [*path, "--help"])
        assert told.exit_code == 0
        assert "…" not in told.output, path
        for parameter in command.params:
            for name in (*parameter.opts, *parameter.secondary_opts):
                assert name in told.output or not name.startswith("-"), (path, name)


def test_a_group_tells_all_that_is_under_it() -> None:
    told = " ".join(CliRunner(env={"COLUMNS": "80"}).invoke(build_app(), ["--help"]).output.split())
    for name, command in ROOT.commands.items():
        assert f"{name} {command.get_short_help_str(1000)}" in told

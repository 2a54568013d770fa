"""``headrace tenants``: the key is shown once, the file keeps its hash."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from headrace.api.tenants.registry import Registry
from headrace.cli.tenants import tenants_app


def run(*arguments: str) -> str:
    result = CliRunner().invoke(tenants_app(), arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_add_and_list(tmp_path: Path) -> None:
    file = tmp_path / "tenants.json"
    key = json.loads(run("add", "acme", "-f", str(file), "--tokens-per-min", "9", "--json"))["key"]
    run("add", "root", "-f", str(file), "--admin")
    found = Registry.load(file).find(key)
    assert found is not None
    assert (found.name, found.tokens_per_min, found.admin) == ("acme", 9, False)
    told = json.loads(run("list", "-f", str(file), "--json"))
    assert [(one["name"], one["admin"]) for one in told] == [("acme", False), ("root", True)]
    again = CliRunner().invoke(tenants_app(), ["add", "acme", "-f", str(file)])
    assert again.exit_code == 2
    assert Registry.load(file).find(key) == found

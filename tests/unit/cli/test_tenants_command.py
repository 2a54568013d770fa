"""``headrace tenants``: the key is shown once, the file keeps its hash."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace.api.tenants.registry import Registry, changing
from headrace.cli.serve import _open_tenancy
from headrace.cli.tenants import tenants_app
from headrace.config import SchedulerConfig
from headrace.contract.errors import ConfigError


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


def test_who_adds_a_tenant_waits_for_who_is_adding_one(tmp_path: Path) -> None:
    file = tmp_path / "tenants.json"
    run("add", "first", "-f", str(file))
    with ThreadPoolExecutor(1) as pool:
        with changing(file):
            mine = Registry.load(file)
            other = pool.submit(run, "add", "second", "-f", str(file))
            wait([other], 0.1)  # without the lock it is done by now, and lost with the next line
            mine.save(file)
        other.result()
    assert {one.name for one in Registry.load(file).tenants} == {"first", "second"}


def test_a_change_that_hangs_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    file = tmp_path / "tenants.json"
    with changing(file), pytest.raises(ConfigError, match="another program"), changing(file, 0.0):
        pass


def test_a_tenant_gets_a_new_key_or_goes_and_others_stay(tmp_path: Path) -> None:
    file = tmp_path / "tenants.json"
    first, other = (
        json.loads(run("add", name, "-f", str(file), "--weight", "2", "--json"))["key"] for name in ("acme", "root")
    )
    second = json.loads(run("rekey", "acme", "-f", str(file), "--json"))["key"]
    known = Registry.load(file)
    assert known.find(first) is None
    renewed, kept = known.find(second), known.find(other)
    assert renewed is not None
    assert kept is not None
    assert (renewed.name, renewed.weight, kept.name) == ("acme", 2, "root")
    run("remove", "acme", "-f", str(file))
    assert [one.name for one in Registry.load(file).tenants] == ["root"]
    for command in ("remove", "rekey"):
        refused = CliRunner().invoke(tenants_app(), [command, "acme", "-f", str(file)])
        assert refused.exit_code == 2
        assert "root" in refused.output


def test_a_change_says_when_it_counts(tmp_path: Path) -> None:
    file = str(tmp_path / "tenants.json")
    for command in ("add", "rekey", "remove"):
        assert "restart it" in CliRunner().invoke(tenants_app(), [command, "acme", "-f", file]).stderr


def test_a_server_that_nobody_could_use_is_not_started(tmp_path: Path) -> None:
    path = tmp_path / "tenants.json"
    Registry([]).save(path)
    with pytest.raises(ConfigError, match=r"names no tenant.*headrace tenants add"):
        _open_tenancy(path, tmp_path / "usage.sqlite", SchedulerConfig())


def test_limits_change_and_the_key_stays(tmp_path: Path) -> None:
    file = tmp_path / "tenants.json"
    made = ("add", "acme", "-f", str(file), "--tokens-per-min", "9", "--weight", "2", "--json")
    key = json.loads(run(*made))["key"]
    run("set", "acme", "-f", str(file), "--requests-per-min", "5", "--tokens-per-min", "0", "--admin")
    found = Registry.load(file).find(key)
    assert found is not None
    assert (found.requests_per_min, found.tokens_per_min, found.weight, found.admin) == (5, None, 2, True)
    for bad in (["acme"], ["other", "--weight", "3"], ["acme", "--weight", "0"]):
        assert CliRunner().invoke(tenants_app(), ["set", *bad, "-f", str(file)]).exit_code == 2
    assert Registry.load(file).find(key) == found


def test_a_file_that_is_not_there_says_what_makes_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="headrace tenants add"):
        Registry.load(tmp_path / "tenants.json")

"""``headrace kv``: what it tells of a store, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kv_values import found, put
from typer.testing import CliRunner, Result

from headrace.cli.kv_store import sizes
from headrace.cli.main import build_app
from headrace.contract.layout import KVGroup, KVKind, KVLayout
from headrace.kv.keys import tenant_tag
from headrace.kv.local import LocalStore
from headrace.kv.place import DEFAULT_BYTES, default_folder, settle_capacity
from headrace.kv.records import record_specs

ROOMY = 64 << 20


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    store = LocalStore(tmp_path / "kv", ROOMY, segment_bytes=40_000)
    for number in range(9):
        put(store, number, tenant=tenant_tag("a" if number % 3 else ""))
    store.close()
    return tmp_path / "kv"


def kv(*arguments: str) -> Result:
    return CliRunner().invoke(build_app(), ["kv", *arguments])


def told(*arguments: str) -> dict[str, Any]:
    result = kv(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return dict(json.loads(result.output))


def test_stat_and_check(folder: Path) -> None:
    facts = told("stat", "--kv-store", str(folder))
    assert (facts["values"], facts["value_bytes"], facts["tenants"]) == (9, 45_000, 2)
    assert told("check", "--kv-store", str(folder)) == {"whole": 9, "damaged": 0}
    assert "value bytes" in kv("stat", "--kv-store", str(folder)).output


def test_check_fails_on_damage_and_drops_it(folder: Path) -> None:
    path = sorted((folder / "segments").iterdir())[0]
    data = bytearray(path.read_bytes())
    data[9000] ^= 255
    path.write_bytes(data)
    result = kv("check", "--kv-store", str(folder), "--json")
    assert (result.exit_code, json.loads(result.output)) == (1, {"whole": 8, "damaged": 1})
    assert told("check", "--kv-store", str(folder)) == {"whole": 8, "damaged": 0}


def test_purge_and_gc(folder: Path) -> None:
    assert told("purge", "--kv-store", str(folder), "--tenant", "a") == {"purged": 6}
    before = told("stat", "--kv-store", str(folder))
    freed = told("gc", "--kv-store", str(folder))
    assert freed["expired"] == 0
    assert told("stat", "--kv-store", str(folder))["file_bytes"] == before["file_bytes"] - freed["freed_bytes"]
    store = LocalStore(folder, ROOMY)
    assert [number for number in range(9) if found(store, number)] == [0, 3, 6]
    store.close()
    assert told("purge", "--kv-store", str(folder), "--all") == {"purged": 3}


def test_what_is_refused(tmp_path: Path, folder: Path) -> None:
    for arguments, code, words in (
        (("stat", "--kv-store", str(tmp_path / "none")), 1, "no KV store"),
        (("purge", "--kv-store", str(folder)), 2, "tenant"),
        (("purge", "--kv-store", str(folder), "--all", "--tenant", "a"), 2, "tenant"),
    ):
        result = kv(*arguments)
        assert result.exit_code == code
        assert words in result.output
    assert not (tmp_path / "none").exists()


def test_sizes_of_the_default_model() -> None:
    kv_facts = {"head_dim": 64, "groups": [{"window": 0, "bytes_per_token": 2 * 30 * 3 * 64 * 4}]}
    facts = sizes(kv_facts, 4 << 30, "int16")
    [spec] = record_specs(KVLayout(30, 3, 64, (KVGroup(KVKind.FULL, 0, tuple(range(30))),)), "int16")
    assert facts["block_record_bytes"] == spec.bytes_per_grain
    assert sizes(kv_facts, 4 << 30, "float32")["bytes_per_token"] == 2 * 30 * 3 * 64 * 4
    assert facts["block_record_bytes"] == 128 * facts["bytes_per_token"]
    assert facts["state_record_bytes"] == 0
    assert facts["tokens_in_store"] == (4 << 30) // facts["disk_bytes_per_grain"] * 128


def test_sizes_of_a_model_that_keeps_records() -> None:
    """Bytes as they are, whatever dtype is asked for."""
    kv = {"head_dim": 64, "records": {"block": 5000, "aux": 100, "state": 9000}, "groups": []}
    codes, floats = (sizes(kv, 1 << 20, kv_dtype) for kv_dtype in ("int8", "float32"))
    assert codes == floats
    assert (codes["block_record_bytes"], codes["aux_record_bytes"], codes["state_record_bytes"]) == (5000, 100, 9000)
    assert codes["disk_bytes_per_grain"] == 3 * 4096 + 8192 + 4096 + 12_288


def test_the_place_and_its_bound(tmp_path: Path) -> None:
    assert default_folder(tmp_path) == tmp_path / "kv"
    assert settle_capacity(tmp_path / "not" / "there", 123) == 123
    assert 0 < settle_capacity(tmp_path / "not" / "there", None) <= DEFAULT_BYTES

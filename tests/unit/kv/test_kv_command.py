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
from headrace.config import resolve
from headrace.contract.errors import ConfigError, StoreError
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
    assert told("purge", "--kv-store", str(folder), "--tenant", "a") == {"folder": str(folder), "purged": 6}
    before = told("stat", "--kv-store", str(folder))
    freed = told("gc", "--kv-store", str(folder))
    assert freed["expired"] == 0
    assert told("stat", "--kv-store", str(folder))["file_bytes"] == before["file_bytes"] - freed["freed_bytes"]
    store = LocalStore(folder, ROOMY)
    assert [number for number in range(9) if found(store, number)] == [0, 3, 6]
    store.close()
    assert told("purge", "--kv-store", str(folder), "--all")["purged"] == 3


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


def test_the_store_of_the_environment_or_a_file_is_meant(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HEADRACE_KV_STORE", str(folder))
    assert told("stat")["values"] == 9
    assert told("purge", "--tenant", "a") == {"folder": str(folder), "purged": 6}
    monkeypatch.setenv("HEADRACE_KV_STORE", "off")
    result = kv("stat")
    assert result.exit_code == 2
    assert "kv_store: is off" in result.output
    toml = tmp_path / "engine.toml"
    toml.write_text(f'kv_store = "{folder}"\n')
    assert told("stat", "--config", str(toml))["values"] == 3


def test_a_purge_that_finds_nothing_says_so(folder: Path) -> None:
    result = kv("purge", "--kv-store", str(folder), "--tenant", "nobody")
    assert result.exit_code == 1
    assert f"nothing was stored by this tenant in {folder}" in result.output


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("tcp://127.0.0.1:7420", "kvstore stat tcp://127.0.0.1:7420"),
        ("s3://bucket/prefix", "its own tools"),
        ("mooncake://127.0.0.1:50051", "its master"),
        ("tcp://127.0.0.1", "needs a host and a port"),
    ],
)
def test_stores_elsewhere_have_others_that_look_after_them(place: str, words: str) -> None:
    result = kv("stat", "--kv-store", place)
    assert result.exit_code == 2
    assert words in result.output


def test_somebody_else_s_folder_is_left_as_it_is(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    (theirs / "index").mkdir(parents=True)
    (theirs / "index").chmod(0o755)
    (theirs / "index" / "data.mdb").write_bytes(b"somebody's")
    result = kv("stat", "--kv-store", str(theirs))
    assert result.exit_code == 2
    assert "is not a KV store" in result.output
    with pytest.raises(StoreError, match="is not a KV store"):
        LocalStore(theirs, ROOMY)
    assert (theirs / "index" / "data.mdb").read_bytes() == b"somebody's"
    assert (theirs / "index").stat().st_mode & 0o777 == 0o755
    assert [path.name for path in theirs.iterdir()] == ["index"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--size", "0"), "size: must be at least"),
        (("--tenant-quota", "0"), "tenant_quota: must be at least"),
        (("--size", "2MiB", "--tenant-quota", "3MiB"), "tenant_quota: 3MiB is more than"),
        (("--listen", "nonsense"), "tcp://HOST:PORT or ipc://PATH"),
        (("--listen", "tcp://127.0.0.1"), "needs a host and a port"),
    ],
)
def test_servers_that_could_not_serve_are_refused(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    result = CliRunner().invoke(build_app(), ["kvstore", "serve", "--folder", str(tmp_path / "kv"), *arguments])
    assert result.exit_code == 2
    assert words in result.output
    assert not (tmp_path / "kv").exists()


def test_a_malformed_address_is_told_at_once() -> None:
    result = CliRunner().invoke(build_app(), ["kvstore", "stat", "127.0.0.1:7420"])
    assert result.exit_code == 2
    assert "must be tcp://HOST:PORT or ipc://PATH" in result.output


def test_sizes_in_a_file_may_have_units(tmp_path: Path) -> None:
    toml = tmp_path / "engine.toml"
    toml.write_text('kv_store_size = "20GiB"\nkv_memory = 1000000\n')
    cache = resolve({}, toml).cache
    assert (cache.kv_store_size, cache.kv_memory) == (20 << 30, 1_000_000)
    toml.write_text('kv_store_size = "much"\n')
    with pytest.raises(ConfigError, match="kv_store_size: must be a size"):
        resolve({}, toml)

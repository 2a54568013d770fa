"""``headrace golden`` as a command: the shipped baselines on this machine, refreshes with reasons, refusals, ranks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cli_models import start
from typer.testing import CliRunner, Result

from headrace import _kernels
from headrace.cli.main import build_app
from headrace.lab.golden import baseline as files
from headrace.lab.golden.baseline import SHIPPED
from headrace.lab.golden.lock import Lock


def golden(*arguments: str) -> Result:
    return CliRunner().invoke(build_app(), ["golden", *arguments])


def stored(path: Path) -> files.Baseline:
    return msgspec.json.decode(path.read_bytes(), type=files.Baseline)


def reported(result: Result, code: int = 0) -> dict[str, Any]:
    assert result.exit_code == code, result.stderr
    plain: dict[str, Any] = json.loads(result.stdout)
    return plain


@pytest.fixture(params=["avx512", "avx2", "scalar"])
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param not in _kernels.available_isas():
        pytest.skip(f"this processor has no {request.param}")
    before = _kernels.isa()
    monkeypatch.setenv("HEADRACE_ISA", request.param)
    yield request.param
    _kernels.set_isa(before)


@pytest.mark.parametrize("dtype", ["auto", "float32"])
def test_the_tiny_model_answers_as_it_did(isa: str, dtype: str) -> None:
    plain = reported(golden("check", "--tiny", "--dtype", dtype, "--json"))
    assert plain["key"] | {"isa": isa, "dtype": dtype, "deterministic": True} == plain["key"]
    assert (plain["ok"], plain["compared"], plain["total"]) == (True, 18, 18)


def test_other_variants_of_the_libraries_below_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a processor for which torch and the C library choose other code, with the kernels' instruction set kept."""
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.cpu.hwcaps=-AVX2,-FMA,-AVX512F")
    process = start("golden", "check", "--tiny", "--json")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err.decode()
    assert json.loads(out)["ok"]


def test_avx2_and_avx512_have_one_answer() -> None:
    for name in ("auto-int16", "float32-float32"):
        wide, narrow = (stored(SHIPPED / "tiny" / f"cpu-{i}-{name}-deterministic.json") for i in ("avx512", "avx2"))
        assert wide.samples == narrow.samples


@pytest.mark.model
@pytest.mark.parametrize("dtype", ["auto", "float32"])
def test_the_default_model_answers_as_it_did(dtype: str) -> None:
    if _kernels.isa() == "scalar":
        pytest.skip("no baseline is shipped for scalar")
    flags = ("--group", "tokens", "--kv-memory", "512MiB", "--max-model-len", "2200")
    assert reported(golden("check", "--dtype", dtype, "--json", *flags))["compared"] == 8


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    assert golden("refresh", "--tiny", "--folder", str(tmp_path), "--reason", " the first one ").exit_code == 0
    return tmp_path


def only_file(folder: Path) -> Path:
    [path] = (folder / "tiny").iterdir()
    return path


def spoil(path: Path, sample: str) -> None:
    """As if the arithmetic had changed one bit of one sample."""
    plain = json.loads(path.read_bytes())
    plain["samples"][sample]["logprobs"][-1] = "-0x1.0p+0"
    path.write_text(json.dumps(plain))


def test_a_changed_bit_is_found_told_and_kept_with_a_reason(folder: Path) -> None:
    path = only_file(folder)
    good = path.read_bytes()
    spoil(path, "tokens/3")
    at = ("--tiny", "--folder", str(folder))
    [difference] = reported(golden("check", *at, "--json"), 1)["differences"]
    assert (difference["sample"], difference["what"]) == ("tokens/3", "logprobs")
    assert "at token 15" in difference["baseline"]
    table = golden("check", *at)
    assert "tokens/3" in table.stdout
    assert "1 differences" in table.stderr
    assert golden("refresh", *at, "--reason", "kernels add up in another order").exit_code == 0
    assert json.loads(good)["samples"] == json.loads(path.read_bytes())["samples"]
    assert [entry.reason for entry in stored(path).history] == ["the first one", "kernels add up in another order"]


def test_ranks_and_groups_compare_only_what_they_own(folder: Path) -> None:
    spoil(only_file(folder), "tokens/3")  # index 11
    at = ("--tiny", "--folder", str(folder), "--json")
    codes = [golden("check", *at, "--rank", str(rank), "--world", "2").exit_code for rank in (0, 1)]
    assert codes == [0, 1]
    assert reported(golden("check", *at, "--group", "long"))["compared"] == 2
    assert reported(golden("check", *at, "--group", "tokens", "--rank", "3", "--world", "4"), 1)["compared"] == 2


def test_a_candidate_is_whole_or_not_at_all(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "candidate.json"
    at = ("--tiny", "--folder", str(folder), "--candidate", str(out))
    for partial in (("--group", "long"), ("--world", "2")):
        result = golden("check", *at, *partial)
        assert result.exit_code == 2
        assert "candidate: would be partial" in result.stderr
        assert not out.exists()
    assert golden("check", *at).exit_code == 0
    assert stored(out).samples == stored(only_file(folder)).samples


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("refresh", "--tiny"), "--reason"),
        (("refresh", "--tiny", "--reason", "  "), "reason: is empty"),
        (("check", "--tiny", "--rank", "3", "--world", "2"), "rank: must lie between 0 and 1"),
        (("check", "--tiny", "--group", "short"), "group: must be one of"),
        (("check", "--tiny", "--model", "x"), "give a model or --tiny"),
        (
            ("check", "--tiny", "--candidate", "/nowhere/at/all.json"),
            "all.json cannot be written: /nowhere/at is not a folder",
        ),
        (("check", "--tiny", "--folder", "/nowhere"), "baseline: /nowhere/tiny/cpu-"),
        (("check", "--tiny", "--max-model-len", "100"), "max_model_len: the long samples need 2056"),
    ],
)
def test_refusals(arguments: tuple[str, ...], words: str) -> None:
    result = golden(*arguments)
    assert result.exit_code == 2
    assert words in " ".join(result.stderr.split())
    assert result.stdout == ""


def test_a_refresh_while_another_one_runs(folder: Path) -> None:
    path = only_file(folder)
    before = path.read_bytes()
    with Lock(path.with_name(path.name + ".lock")).held():
        result = golden("refresh", "--tiny", "--folder", str(folder), "--reason", "me too")
    assert result.exit_code == 2
    assert "is refreshing this" in result.stderr
    assert path.read_bytes() == before
    assert only_file(folder) == path, "no lock or part is left behind"


def test_other_weights_are_named(folder: Path) -> None:
    path = only_file(folder)
    path.write_text(path.read_text().replace(stored(path).weights, "0" * 16))
    [difference] = reported(golden("check", "--tiny", "--folder", str(folder), "--json"), 1)["differences"]
    assert difference["what"] == "weights"

"""Exact comparison: every way in which answers can differ has its own words, and ranks look at their own only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.config import resolve
from headrace.contract.errors import ConfigError
from headrace.lab.golden.actions import check, refresh_command
from headrace.lab.golden.baseline import FORMAT, SHIPPED, Baseline, Entry, read, write
from headrace.lab.golden.compare import compare
from headrace.lab.golden.key import Key, key_of
from headrace.lab.golden.lock import Lock
from headrace.lab.golden.suite import GROUPS, TINY, Sample, Share, _cut, _drawn, _total

KEY = Key("tiny", "cpu", "avx2", "auto", "bfloat16", True)


def entry(index: int, /, **changes: object) -> Entry:
    same = Entry(
        index, GROUPS[index % 3], f"in{index}", [1, 2, 3], ["-0x1.0p+0", "-0x1.8p+0", "-0x1.cp+0"], "b", "0x1p+3"
    )
    return msgspec.structs.replace(same, **changes)


def baseline(**changes: Entry) -> Baseline:
    samples = {f"s{i}": entry(i) for i in range(6)}
    return Baseline(FORMAT, KEY, "w", [], samples | changes)


WHOLE = baseline().samples


def test_equal_is_no_difference() -> None:
    assert compare(baseline(), WHOLE, "w", Share()) == []


@pytest.mark.parametrize(
    ("change", "what", "words"),
    [
        ({"ids": [1, 9, 3]}, "ids", "at token 1: [2, 3]"),
        ({"ids": [1, 2]}, "ids", "at token 2: [3]"),
        ({"logprobs": ["-0x1.0p+0", "-0x1.8000000000001p+0", "-0x1.cp+0"]}, "logprobs", "at token 1: -0x1.8p+0 (-1.5)"),
        ({"nll": "0x1.0000000000001p+3"}, "nll", "0x1p+3"),
        ({"bits": "c"}, "bits", "b"),
        ({"inputs": "other"}, "inputs", "in4 at 4"),
        ({"index": 5}, "inputs", "in4 at 4"),
        ({"group": "long"}, "inputs", "in4 at 4 of tokens"),
        ({"perplexity": 1.0}, "perplexity", "None"),
    ],
)
def test_the_last_bit_of_anything_shows(change: dict[str, object], what: str, words: str) -> None:
    found = {**WHOLE, "s4": entry(4, **change)}
    [difference] = compare(baseline(), found, "w", Share())
    assert (difference.sample, difference.what) == ("s4", what)
    assert words in difference.baseline


def test_missing_and_unexpected_in_the_suite_s_order() -> None:
    found = {name: e for name, e in WHOLE.items() if name != "s3"} | {"new": entry(9)}
    assert [(d.sample, d.what) for d in compare(baseline(), found, "w", Share())] == [
        ("s3", "missing"),
        ("new", "unexpected"),
    ]


def test_other_weights_are_told_from_other_arithmetic() -> None:
    [difference] = compare(baseline(), {}, "v", Share())
    assert (difference.what, difference.baseline, difference.found) == ("weights", "w", "v")


@pytest.mark.parametrize("world", [1, 2, 5])
def test_ranks_look_at_their_own_and_together_at_everything(world: int) -> None:
    changed = {name: entry(e.index, bits="c") for name, e in WHOLE.items()}
    seen = []
    for rank in range(world):
        share = Share(rank=rank, world=world)
        own = {name: e for name, e in changed.items() if share.owns(e.index, e.group)}
        differences = compare(baseline(), own, "w", share)
        assert {d.what for d in differences} == {"bits"}
        assert all(WHOLE[d.sample].index % world == rank for d in differences)
        seen += [d.sample for d in differences]
    assert sorted(seen) == sorted(WHOLE)


@pytest.mark.parametrize(
    ("share", "field"),
    [(Share("x"), "group"), (Share(world=0), "world"), (Share(None, 2, 2), "rank"), (Share(None, 40, 50), "rank")],
)
def test_shares_that_are_none(share: Share, field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        share.check()
    assert caught.value.field == field


def test_the_suite_is_cut_once_and_every_sample_asks_something_else() -> None:
    samples: list[Sample] = _cut(_drawn(96, _total()))
    assert [sample.index for sample in samples] == list(range(18))
    assert [sample.group for sample in samples].count("long") == 2
    assert len({sample.inputs for sample in samples}) == 18
    assert all(len(sample.ids) == 2048 for sample in samples if sample.group == "long")
    assert {sample.params.temperature for sample in samples if sample.group == "tokens"} == {0.0, 1.0}


def test_keys_tell_platform_and_mode_apart() -> None:
    wishes = [{}, {"dtype": "float32"}, {"kv_dtype": "float32"}, {"deterministic": True}, {"backend": "reference"}]
    keys = [key_of(resolve(wish), "m", "avx2") for wish in wishes] + [key_of(resolve({}), "m", "avx512")]
    assert len({str(key.file) for key in keys}) == len(keys)
    assert key_of(resolve({}), "hf:org/../name", "avx2").file.parts[0] == "hf_org_.._name"


def test_files_that_are_none(tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "b.json"
    with pytest.raises(ConfigError, match=r"does not exist; `make` makes it"):
        read(path, KEY, "make")
    path.write_text("{")
    with pytest.raises(ConfigError, match=r"b\.json is damaged .*; bring the file back"):
        read(path, KEY, "make")
    write(path, msgspec.structs.replace(baseline(), format=99))
    with pytest.raises(ConfigError, match="format 99"):
        read(path, KEY, "make")
    write(path, baseline())
    assert read(path, KEY, "make") == baseline()
    assert [p.name for p in tmp_path.iterdir()] == ["b.json"]


@pytest.mark.parametrize("value", ["zzz", "0x1p99999", "-1.5\u0662"])
@pytest.mark.parametrize("field", ["logprobs", "nll"])
def test_numbers_that_are_none_are_damage_and_no_changed_answers(tmp_path: Path, field: str, value: str) -> None:
    path = tmp_path / "b.json"
    spoiled = entry(4, **{field: ["-0x1.0p+0", value] if field == "logprobs" else value})
    write(path, baseline(s4=spoiled))
    with pytest.raises(ConfigError, match=r"b\.json is damaged: sample 's4': .* hexadecimal float; bring"):
        read(path, KEY, "make")


def test_the_baseline_of_another_key_is_none_of_ours(tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    write(path, baseline())
    with pytest.raises(ConfigError, match=r"is of tiny on cpu avx2, dtype auto, .*, not of other on cpu"):
        read(path, msgspec.structs.replace(KEY, model="other"), "make")


def test_what_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere/b\.json cannot be written: No such file"):
        write(tmp_path / "nowhere" / "b.json", baseline())
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"^folder: .*file/tiny"), Lock(tmp_path / "file" / "tiny" / "b.lock").held():
        pass


@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        ({}, "refresh --folder 'my own' --reason"),
        ({"model": f"dummy:{TINY}", "deterministic": False}, "refresh --tiny --free --folder 'my own' --reason"),
        ({"model": "a b", "dtype": "float32"}, "refresh --model 'a b' --dtype float32 --folder 'my own' --reason"),
        ({"kv_dtype": "int8", "backend": "reference"}, "--backend reference --kv-dtype int8 --folder"),
    ],
)
def test_the_command_that_makes_a_baseline_makes_this_one(wishes: dict[str, Any], words: str) -> None:
    config = resolve({"deterministic": True} | wishes)
    assert words in refresh_command(config, Path("my own"))
    assert "--folder" not in refresh_command(config, SHIPPED)


@pytest.mark.parametrize("folder", ["own", None])
def test_a_candidate_is_no_baseline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str | None) -> None:
    """Refused before any work, by whatever name the file is called."""
    monkeypatch.chdir(tmp_path)
    place = Path(folder) if folder else SHIPPED
    with pytest.raises(ConfigError, match=r"^candidate: .* lies among the baselines"):
        check(resolve({"model": "dummy:none"}), Path("own"), Share(), place / "." / "tiny" / ".." / "tiny" / "b.json")

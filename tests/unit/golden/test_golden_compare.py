"""Exact comparison: every way in which answers can differ has its own words, and ranks look at their own only."""

from __future__ import annotations

import msgspec
import pytest

from headrace.config import resolve
from headrace.contract.errors import ConfigError
from headrace.lab.golden.baseline import FORMAT, Baseline, Entry, read, write
from headrace.lab.golden.compare import compare
from headrace.lab.golden.key import Key, key_of
from headrace.lab.golden.suite import GROUPS, Sample, Share, _cut, _drawn, _total

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
    ("share", "field"), [(Share("x"), "group"), (Share(world=0), "world"), (Share(None, 2, 2), "rank")]
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
    with pytest.raises(ConfigError, match=r"does not exist; `headrace golden refresh"):
        read(path)
    path.write_text("{")
    with pytest.raises(ConfigError, match="baseline"):
        read(path)
    write(path, msgspec.structs.replace(baseline(), format=99))
    with pytest.raises(ConfigError, match="format 99"):
        read(path)
    write(path, baseline())
    assert read(path) == baseline()
    assert [p.name for p in tmp_path.iterdir()] == ["b.json"]

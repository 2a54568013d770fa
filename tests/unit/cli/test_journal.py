"""The output of a batch: whole records whatever happens, and a reliable memory of what is done."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.cli.batch import journal
from headrace.cli.batch.journal import Done, Journal, OutputError
from headrace.contract.errors import ConfigError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


def written(path: Path) -> bytes:
    with Journal(path) as out:
        out.write(1, "a", {"text": "one\nline"})
        out.write(2, None, {"text": "é"})
        out.write(5, 7, {"error": {"field": "id", "message": "no"}})
    return path.read_bytes()


def test_records_are_one_json_line_each(path: Path) -> None:
    lines = written(path).decode().splitlines()
    assert [json.loads(line)["line"] for line in lines] == [1, 2, 5]
    assert json.loads(lines[1]) == {"id": None, "line": 2, "text": "é"}


def test_what_is_in_the_file_is_done(path: Path) -> None:
    written(path)
    with Journal(path) as out:
        assert out.num_found == 3
        assert out.done.has(99, "a")  # by id, wherever the line went
        assert out.done.has(99, 7)
        assert not out.done.has(99, "7")
        assert out.done.has(2, None)  # by number, where there was no id
        assert not out.done.has(1, None)


@given(cut=st.integers(0, 200))
@settings(max_examples=60, deadline=None)
def test_a_file_cut_anywhere_keeps_its_whole_records(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    path = tmp_path_factory.mktemp("cut") / "out.jsonl"
    whole = written(path)
    cut = min(cut, len(whole))
    path.write_bytes(whole[:cut])
    with Journal(path) as out:
        assert out.num_found == whole[:cut].count(b"\n")
        out.write(9, None, {"text": "more"})
    lines = path.read_bytes().splitlines()
    assert lines[:-1] == whole[:cut].split(b"\n")[: whole[:cut].count(b"\n")]
    assert json.loads(lines[-1])["line"] == 9


@pytest.mark.parametrize("foreign", [b"my diary\n", b"my diary", b'{"id": 3}\n', b'{"other":1}\n', b"\xff\xfe\n"])
def test_somebody_elses_file_is_left_alone(path: Path, foreign: bytes) -> None:
    path.write_bytes(foreign)
    with pytest.raises(ConfigError, match="output"):
        Journal(path)
    assert path.read_bytes() == foreign


def test_zeros_after_a_power_cut_are_cut_off(path: Path) -> None:
    whole = written(path)
    path.write_bytes(whole + bytes(100))
    with Journal(path) as out:
        assert out.num_cut_bytes == 100
    assert path.read_bytes() == whole


def test_two_runs_cannot_write_one_output(path: Path) -> None:
    with Journal(path), pytest.raises(OutputError, match="another run"):
        Journal(path)
    Journal(path).close()  # free again


@pytest.mark.parametrize("target", [".", "/dev/null", "missing/out.jsonl"])
def test_only_a_regular_file_can_be_resumed(tmp_path: Path, target: str) -> None:
    with pytest.raises(ConfigError, match="output"):
        Journal(tmp_path / target)


def test_a_full_disk_leaves_whole_records(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = written(path)
    real, calls = os.write, iter([True, False])

    def write(file: int, data: memoryview) -> int:
        if next(calls):
            return real(file, data[:10])  # a disk takes what it can before it says no
        raise OSError(errno.ENOSPC, "No space left on device")

    with Journal(path) as out:
        monkeypatch.setattr(journal.os, "write", write)
        with pytest.raises(OutputError, match=r"no space left to write .*resume"):
            out.write(6, None, {"text": "x" * 100})
        monkeypatch.setattr(journal.os, "write", real)
        assert path.read_bytes() == whole
        assert not out.done.has(6, None)
        out.write(6, None, {"text": "x"})
    assert path.read_bytes().startswith(whole)


@given(st.lists(st.tuples(st.integers(1, 5000), st.none() | st.integers() | st.text(max_size=5)), max_size=50))
def test_done_remembers_exactly_what_was_added(entries: list[tuple[int, str | int | None]]) -> None:
    done, lines, ids = Done(), set(), set()
    for line, given_id in entries:
        assert done.has(line, given_id) == (
            (line in lines) if given_id is None else ((type(given_id), given_id) in ids)
        )
        done.add(line, given_id)
        lines.update([line] if given_id is None else [])
        ids.update([] if given_id is None else [(type(given_id), given_id)])

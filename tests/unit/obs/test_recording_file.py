"""Reading a recording: what is wrong with a file is named with its line; only a cut-off end is forgiven."""

from pathlib import Path

import pytest

from headrace.contract.errors import HeadraceError, RecordingError
from headrace.lab.worked_examples import RECORDINGS
from headrace.obs.recording import read_recording

LINES = (RECORDINGS / "v-e1.jsonl").read_text().splitlines()


def write(tmp_path: Path, lines: list[str], end: str = "\n") -> Path:
    path = tmp_path / "r.jsonl"
    path.write_text("\n".join(lines) + end)
    return path


def line_of(event: str) -> int:
    """Index of the first line with this event."""
    return next(i for i, line in enumerate(LINES) if f'"event":"{event}"' in line)


def test_a_good_file_is_whole(tmp_path: Path) -> None:
    recording = read_recording(write(tmp_path, LINES))
    assert len(recording.events) == len(LINES) - 1
    assert recording.num_steps == 4
    assert not recording.truncated


@pytest.mark.parametrize("cut", [1, 20, 60])
def test_a_cut_off_last_line_is_left_out_and_reported(tmp_path: Path, cut: int) -> None:
    path = write(tmp_path, LINES)
    path.write_bytes(path.read_bytes()[: -cut - 1])
    recording = read_recording(path)
    assert recording.truncated
    assert len(recording.events) == len(LINES) - 2


def test_a_missing_last_newline_alone_loses_nothing(tmp_path: Path) -> None:
    recording = read_recording(write(tmp_path, LINES, end=""))
    assert len(recording.events) == len(LINES) - 1
    assert not recording.truncated


def broken(index: int, old: str, new: str) -> list[str]:
    assert old in LINES[index]
    return [*LINES[:index], LINES[index].replace(old, new), *LINES[index + 1 :]]


PLAN, COMMIT, ADD = line_of("plan"), line_of("commit"), line_of("add")

BROKEN = {
    "no JSON": (PLAN, [*LINES[:PLAN], "{nonsense", *LINES[PLAN + 1 :]], "malformed"),
    "unknown event": (ADD, broken(ADD, '"add"', '"fly"'), "fly"),
    "unknown field": (ADD, broken(ADD, '"max_tokens"', '"most_tokens"'), "most_tokens"),
    "wrong type": (PLAN, broken(PLAN, '"seq_ids":[4,1]', '"seq_ids":"4"'), "seq_ids"),
    "short array": (PLAN, broken(PLAN, '"num_scheduled":[3,5]', '"num_scheduled":[3]'), "num_scheduled"),
    "offsets": (PLAN, broken(PLAN, '"fresh_offsets":[0,3,12]', '"fresh_offsets":[0,3,13]'), "fresh_offsets"),
    "unknown clip": (PLAN, broken(PLAN, '"clips":[0,1]', '"clips":[0,99]'), "clips"),
    "step out of turn": (PLAN, broken(PLAN, '"step":0', '"step":3'), "step 3 where 0 was due"),
    "result of no step": (COMMIT, broken(COMMIT, '"step":0', '"step":7'), "step 7"),
    "result too long": (COMMIT, broken(COMMIT, '"num_valid":[3,5]', '"num_valid":[3,5,1]'), "num_valid"),
    "added twice": (ADD + 1, [*LINES[: ADD + 1], LINES[ADD], *LINES[ADD + 1 :]], "was added before"),
    "an empty line": (ADD, [*LINES[:ADD], "", *LINES[ADD:]], "truncated"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_an_error_names_file_and_line(tmp_path: Path, case: str) -> None:
    index, lines, words = BROKEN[case]
    path = write(tmp_path, lines)
    with pytest.raises(RecordingError, match=words) as caught:
        read_recording(path)
    assert caught.value.line == index + 1
    assert str(caught.value).startswith(f"{path}:{index + 1}: ")
    assert isinstance(caught.value, HeadraceError)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not a flight recording"),
        ("hello\n", "not a flight recording"),
        ("[1]\n", "does not say"),
        ('{"a":1}\n', "does not say"),
        ('{"format":2,"event":"config"}\n', "format 2"),
        ('{"format":1,"event":"config"}\n', "missing"),
        (LINES[0].replace('"num_blocks":33', '"groups":7'), "groups"),
    ],
)
def test_what_is_not_a_recording_is_said_at_line_1(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(text)
    with pytest.raises(RecordingError, match=words) as caught:
        read_recording(path)
    assert caught.value.line == 1


def test_bytes_that_are_no_text_are_an_error_too(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(bytes(range(256)) * 8)
    with pytest.raises(RecordingError, match="not a flight recording"):
        read_recording(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="cannot be read"):
        read_recording(tmp_path / "none.jsonl")

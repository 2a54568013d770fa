"""The timeline: steps are spans from plan to result, slices lie on their sequences' tracks in turn."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from headrace.cli.explain import explain
from headrace.contract.errors import RecordingError
from headrace.lab.worked_examples import RECORDINGS
from headrace.obs.recording import read_recording
from headrace.obs.trace import Trace, perfetto

SOURCE = RECORDINGS / "v-e1.jsonl"
ROWS = perfetto(read_recording(RECORDINGS / "v-e1.jsonl"))["traceEvents"]


def phase(ph: str) -> list[Trace]:
    return [row for row in ROWS if row["ph"] == ph]


def test_steps_are_spans_from_plan_to_result() -> None:
    begins, ends = phase("b"), phase("e")
    assert [row["id"] for row in begins] == [row["id"] for row in ends] == [0, 1, 2, 3]
    assert [end["ts"] - begin["ts"] for begin, end in zip(begins, ends)] == pytest.approx([1000.0] * 4)
    assert [row["args"]["tokens"] for row in begins] == [8, 8, 8, 8]
    assert ends[3]["args"] == {"emitted": 3}


def test_slices_lie_on_their_sequence_and_say_what_they_are() -> None:
    at_step_3 = [row for row in phase("X") if row["args"]["step"] == 3]
    assert [(row["tid"], row["name"]) for row in at_step_3] == [
        (1, "verify 4"),
        (2, "decode 1"),
        (3, "prefill 3"),
    ]
    names = {row["tid"]: row["args"]["name"] for row in phase("M") if row["name"] == "thread_name"}
    assert names == {1: "A", 2: "B", 3: "C", 4: "D"}


def test_slices_of_one_track_never_overlap() -> None:
    ends: dict[int, float] = {}
    for row in phase("X"):
        assert row["ts"] >= ends.get(row["tid"], 0.0)
        ends[row["tid"]] = row["ts"] + row["dur"]


def test_counters_follow_every_plan() -> None:
    assert Counter(row["name"] for row in phase("C")) == {
        "sequences": 4,
        "free blocks": 4,
        "scheduled tokens": 4,
    }
    last = [row for row in phase("C") if row["name"] == "free blocks"][-1]
    assert last["args"] == {"blocks": 29}


def test_it_is_written_as_json(tmp_path: Path) -> None:

    app = typer.Typer()
    app.command()(explain)
    out = tmp_path / "t.json"
    assert CliRunner().invoke(app, ["v-e1", "--perfetto", str(out)]).exit_code == 0
    assert len(json.loads(out.read_text())["traceEvents"]) == len(ROWS)


@pytest.mark.parametrize("t", ["1e303", "-1e303", "1e11"])
@pytest.mark.parametrize("line", [2, 3, 5])
def test_a_time_that_json_cannot_hold_is_an_error_with_its_line(tmp_path: Path, t: str, line: int) -> None:
    lines = SOURCE.read_text().splitlines()
    lines[line - 1] = re.sub(r'"t":[^,}]+', f'"t":{t}', lines[line - 1])
    path = tmp_path / "r.jsonl"
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(RecordingError, match=rf"r\.jsonl:{line}: t: "):
        perfetto(read_recording(path))

"""The recorder's own promises: complete lines, in order, and never an exception to the engine."""

import io
import logging
from pathlib import Path

import msgspec
import numpy as np
import pytest

from headrace import _core
from headrace.contract.errors import ConfigError
from headrace.obs import events
from headrace.obs.recorder import FLUSH_EVENTS, FLUSH_SECONDS, Recorder
from headrace.obs.recording import read_recording

SETTINGS = {"num_blocks": 9, "block_size": 4, "groups": [(0, 0)], "token_budget": 8, "max_model_len": 32}

FIELDS = {
    "prompt": [5, 6, 7],
    "max_tokens": 4,
    "min_tokens": 0,
    "eos_ids": [1],
    "stop_ids": [],
    "ignore_eos": False,
    "reads_cache": True,
    "priority": -2,
    "arrival": 0.25,
    "salt": "s",
    "adapter": "",
}


class Clock:
    """Seconds that pass only when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def core_with_one_sequence() -> _core.Scheduler:
    core = _core.Scheduler(**SETTINGS)
    core.add(1, np.array([5, 6, 7], dtype=np.int32), max_tokens=4)
    return core


def tags(path: Path) -> list[str]:
    return [msgspec.json.decode(line)["event"] for line in path.read_bytes().splitlines()]


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    path, clock = tmp_path / "r.jsonl", Clock()
    recorder = Recorder.open(path, SETTINGS, title="t", names={1: "A"}, clock=clock)
    plan = core_with_one_sequence().plan()
    clock.now += 0.5
    recorder.added(1, FIELDS)
    recorder.drafted(1, [8, 9])
    recorder.readied(1, True)
    recorder.planned(plan)
    recorder.committed(0, np.array([3], np.int32), np.array([0, 1], np.int32), np.array([9], np.int32))
    recorder.finished(1, "abort")
    recorder.cache_reset(True)
    recorder.close()
    recording = read_recording(path)
    assert recording.config.format == 1
    assert recording.config.title == "t"
    assert recording.name(1) == "A"
    assert recording.name(2) == "#2"
    assert [type(e).__name__ for e in recording.events] == [
        "Added",
        "Drafted",
        "Readied",
        "Planned",
        "Committed",
        "Finished",
        "CacheReset",
    ]
    added, planned = recording.events[0], recording.events[3]
    assert {name: getattr(added, name) for name in FIELDS} == FIELDS
    assert added.t == 0.5
    assert planned.seq_ids == [1]
    assert planned.num_scheduled == [3]
    assert planned.fresh_tokens == [5, 6, 7]
    assert planned.block_ids == plan.block_ids.tolist()


def test_every_part_of_a_plan_is_recorded() -> None:
    parts = {name for name in dir(_core.StepPlan) if not name.startswith("_")}
    derived = {"total_tokens", "num_fresh", "sums"}
    assert parts - derived == {*events.PLAN_ARRAYS, *events.PLAN_NUMBERS, *events.PLAN_INPUTS}


def test_empty_arrays_take_no_room(tmp_path: Path) -> None:
    recorder = Recorder.open(tmp_path / "r.jsonl", SETTINGS)
    recorder.planned(core_with_one_sequence().plan())
    recorder.close()
    line = msgspec.json.decode((tmp_path / "r.jsonl").read_bytes().splitlines()[1])
    assert "seq_ids" in line
    assert "clone_blocks" not in line


def test_idle_plans_make_no_lines_and_equal_remarks_one(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    core, recorder = _core.Scheduler(**SETTINGS), Recorder.open(path, SETTINGS)
    for _ in range(3):
        recorder.planned(core.plan())
    core.add(1, np.array([5], dtype=np.int32), ready=False)
    for _ in range(3):
        recorder.planned(core.plan())
    recorder.readied(1, False)
    recorder.planned(core.plan())
    recorder.close()
    assert tags(path) == ["config", "plan", "ready", "plan"]


def test_lines_reach_the_disk_after_some_events_and_after_some_time(tmp_path: Path) -> None:
    path, clock = tmp_path / "r.jsonl", Clock()
    recorder = Recorder.open(path, SETTINGS, clock=clock)
    for i in range(FLUSH_EVENTS):
        recorder.finished(i, "abort")
    assert len(path.read_bytes().splitlines()) >= FLUSH_EVENTS
    recorder.finished(1000, "abort")
    everything = 1 + FLUSH_EVENTS + 1
    assert len(path.read_bytes().splitlines()) < everything
    clock.now += FLUSH_SECONDS
    recorder.planned(_core.Scheduler(**SETTINGS).plan())  # an idle tick is enough
    assert len(path.read_bytes().splitlines()) == everything
    recorder.close()


def test_a_full_disk_turns_the_recorder_off_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    recorder = Recorder.open(Path("/dev/full"), SETTINGS)
    with caplog.at_level(logging.WARNING):
        for i in range(3 * FLUSH_EVENTS):
            recorder.finished(i, "abort")
        recorder.close()
    assert not recorder.on
    assert len(caplog.records) == 1
    assert "/dev/full" in caplog.text


def test_a_closed_file_turns_the_recorder_off(caplog: pytest.LogCaptureFixture) -> None:
    file = io.BytesIO()
    recorder = Recorder(file, "memory")
    file.close()
    with caplog.at_level(logging.WARNING):
        recorder.added(1, FIELDS)
        recorder.planned(core_with_one_sequence().plan())
        recorder.failed(0, "x")
    assert not recorder.on
    assert len(caplog.records) == 1


def test_a_field_it_does_not_know_turns_it_off_instead_of_making_a_useless_recording(
    caplog: pytest.LogCaptureFixture,
) -> None:
    file = io.BytesIO()
    recorder = Recorder(file, "memory")
    with caplog.at_level(logging.WARNING):
        recorder.added(1, {**FIELDS, "shape_of_the_moon": 1})
    assert not recorder.on
    assert "shape_of_the_moon" in caplog.text


def test_an_older_recording_is_kept_and_any_other_file_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    Recorder.open(path, SETTINGS, title="first").close()
    Recorder.open(path, SETTINGS, title="second").close()
    assert read_recording(path).config.title == "second"
    assert read_recording(tmp_path / "r.jsonl.previous").config.title == "first"
    other = tmp_path / "weights.bin"
    other.write_bytes(b"precious")
    with pytest.raises(ConfigError, match=r"record: .*weights\.bin exists"):
        Recorder.open(other, SETTINGS)
    assert other.read_bytes() == b"precious"


def test_a_place_that_cannot_be_written_is_an_error_at_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="record"):
        Recorder.open(tmp_path / "nowhere" / "r.jsonl", SETTINGS)


def test_after_close_nothing_is_written(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    recorder = Recorder.open(path, SETTINGS)
    recorder.close()
    recorder.finished(1, "abort")
    recorder.close()
    assert tags(path) == ["config"]

"""The flight recorder on the true engine with a fake worker: replay plans the same steps, come what may."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace._core import Scheduler
from headrace.contract.plan import Note
from headrace.contract.request import Request, SamplingParams
from headrace.contract.result import TokenDelta
from headrace.engine.engine import Engine
from headrace.lab.explain.teller import tell
from headrace.lab.replay import replay
from headrace.obs import events
from headrace.obs.recorder import Recorder
from headrace.obs.recording import Recording, read_recording
from headrace.obs.trace import perfetto
from headrace.worker.fake import FakeWorker

SHAPES: dict[str, dict[str, Any]] = {
    "tight pool": {"num_blocks": 15, "watermark_blocks": 1},
    "roomy pool": {"num_blocks": 65},
    "priority": {"num_blocks": 15, "priority": True, "full_sequence_must_fit": False},
    "no prefix cache": {"num_blocks": 15, "prefix_caching": False},
    "whole prompts": {"num_blocks": 17, "chunked_prefill": False, "token_budget": 32},
    "sliding groups": {"num_blocks": 41, "groups": [(0, 0), (1, 8)]},
    "long prefill": {"num_blocks": 21, "long_prefill_threshold": 5},
}

COMMON = {"block_size": 4, "token_budget": 16, "max_seqs": 5, "max_model_len": 48}


@dataclass
class Run:
    """What a scenario did: deltas by request, and what the core counted."""

    deltas: list[TokenDelta] = field(default_factory=list)
    num_preemptions: int = 0


def request(rng: random.Random, number: int) -> Request:
    """Few distinct beginnings, so that prefixes are shared."""
    start, length = 100 * rng.randrange(3), rng.randrange(1, 20)
    sampling = SamplingParams(
        max_tokens=rng.randrange(1, 16),
        stop_token_ids=[rng.randrange(1000)],
        prompt_logprobs=0 if rng.random() < 0.1 else None,
    )
    return Request(
        request_id=str(number),
        prompt_token_ids=list(range(start, start + length)),
        sampling=sampling,
        eos_ids=tuple(rng.sample(range(1000), 20)),
        priority=rng.randrange(3),
        arrival=float(number),
        cache_salt=rng.choice(["", "", "s"]),
    )


def simulate(seed: int, settings: dict[str, Any], overlap: bool, recorder: Recorder | None) -> Run:
    """Random arrivals, aborts, text stops and failing steps; deterministic in ``seed``."""
    rng, run = random.Random(seed), Run()
    worker = FakeWorker(fail_steps={rng.randrange(200) for _ in range(6)})
    engine = Engine(Scheduler(**settings), worker, overlap=overlap, observer=recorder)
    number = 0
    for _ in range(150):
        for _ in range(rng.choice([0, 0, 0, 1, 3])):
            engine.submit(request(rng, number))
            number += 1
        if number and rng.random() < 0.1:
            rng.choice([engine.abort, engine.stop])(str(rng.randrange(number)))
        run.deltas += engine.tick()
    run.deltas += engine.close()
    run.num_preemptions = engine.core.num_preemptions
    return run


def record(tmp_path: Path, seed: int, shape: str, overlap: bool) -> tuple[Run, Recording]:
    settings = {**COMMON, **SHAPES[shape]}
    path = tmp_path / f"{seed}.jsonl"
    run = simulate(seed, settings, overlap, Recorder.open(path, settings))
    return run, read_recording(path)


@pytest.fixture(scope="module")
def tight(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    return record(tmp_path_factory.mktemp("tight"), 3, "tight pool", True)[1]


@pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "sync"])
@pytest.mark.parametrize("shape", SHAPES)
def test_replay_plans_the_same_steps(tmp_path: Path, shape: str, overlap: bool) -> None:
    for seed in range(3):
        run, recording = record(tmp_path, seed, shape, overlap)
        report = replay(recording)
        assert report.difference is None, (seed, str(report.difference))
        assert report.num_steps == recording.num_steps > 50
        told = tell(recording, 0, recording.num_steps)
        assert told.difference is None
        assert emitted(told) == sum(len(delta.token_ids) for delta in run.deltas)


def emitted(story: Any) -> int:
    return sum(len(piece.emitted or ()) for step in story.steps for piece in step.slices)


def test_the_scenarios_hold_what_they_are_meant_to(tmp_path: Path) -> None:
    run, recording = record(tmp_path, 3, "tight pool", True)
    kinds = [type(event) for event in recording.events]
    assert {events.Added, events.Planned, events.Committed, events.Failed, events.Finished} <= set(kinds)
    assert run.num_preemptions > 5
    reasons = {event.reason for event in recording.events if isinstance(event, events.Finished)}
    assert reasons == {"abort", "stop", "error"}
    assert any(len(e.fresh_cached) and max(e.fresh_cached) > 0 for e in plans(recording))


def plans(recording: Recording) -> Iterator[events.Planned]:
    return (event for event in recording.events if isinstance(event, events.Planned))


@pytest.mark.parametrize("overlap", [True, False])
def test_recording_changes_nothing(tmp_path: Path, overlap: bool) -> None:
    settings = {**COMMON, **SHAPES["tight pool"]}
    recorder = Recorder.open(tmp_path / "r.jsonl", settings)
    assert simulate(5, settings, overlap, recorder) == simulate(5, settings, overlap, None)


def test_a_full_disk_does_not_stop_the_engine() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    settings = {**COMMON, **SHAPES["tight pool"]}
    recorder = Recorder.open(Path("/dev/full"), settings)
    assert simulate(5, settings, True, recorder) == simulate(5, settings, True, None)
    assert not recorder.on


def test_a_plan_that_only_preempts_is_recorded_and_needed(tmp_path: Path) -> None:
    """Under the priority rule the first in line can be the victim: it goes, and the plan is empty."""
    settings = {
        "num_blocks": 3,
        "block_size": 4,
        "token_budget": 8,
        "max_model_len": 16,
        "priority": True,
    }
    path = tmp_path / "r.jsonl"
    engine = Engine(Scheduler(**settings), FakeWorker(), overlap=False, observer=Recorder.open(path, settings))
    for name, length, priority in (("low", 3, 5), ("high", 4, 0)):
        sampling = SamplingParams(max_tokens=4)
        engine.submit(
            Request(request_id=name, prompt_token_ids=list(range(length)), sampling=sampling, priority=priority)
        )
        engine.tick()
    while not engine.idle:
        engine.tick()
    engine.close()
    recording = read_recording(path)
    empty = [i for i, event in enumerate(recording.events) if isinstance(event, events.Planned) and event.step < 0]
    assert int(Note.PREEMPTED) in recording.events[empty[0]].note_codes
    assert replay(recording).ok
    without = [event for i, event in enumerate(recording.events) if i not in empty]
    assert not replay(with_events(recording, without)).ok


def with_events(recording: Recording, changed: list[events.Body]) -> Recording:
    return Recording(recording.path, recording.config, tuple(changed))


# -- tampering -------------------------------------------------------------------------------------


def tampered(value: Any) -> Any:
    """Something else of the same type."""
    if isinstance(value, int):
        return value + 1
    return [*value[:-1], value[-1] + 1] if value else [1]


def plan_with(recording: Recording, name: str) -> int:
    """Index of a later plan in which ``name`` holds something, else of any."""
    steps = [i for i, e in enumerate(recording.events) if isinstance(e, events.Planned) and e.step > 3]
    return next((i for i in steps if getattr(recording.events[i], name) not in ([], [0])), steps[0])


@pytest.mark.parametrize("name", [*events.PLAN_ARRAYS, *events.PLAN_NUMBERS])
def test_any_changed_part_of_a_plan_is_found(tight: Recording, name: str) -> None:
    index = plan_with(tight, name)
    original = tight.events[index]
    event = msgspec.structs.replace(original, **{name: tampered(getattr(original, name))})
    report = replay(with_events(tight, [*tight.events[:index], event, *tight.events[index + 1 :]]))
    assert report.difference is not None
    assert report.difference.line == tight.line(index)
    assert report.difference.field == ("call" if name == "kind" else name)  # a kind that no planner has is refused


@pytest.mark.parametrize("kind", [events.Added, events.Committed, events.Failed, events.Finished])
def test_a_missing_call_is_found(tight: Recording, kind: type) -> None:
    index = next(i for i, event in enumerate(tight.events) if isinstance(event, kind))
    report = replay(with_events(tight, [*tight.events[:index], *tight.events[index + 1 :]]))
    assert report.difference is not None


def test_changed_settings_are_found(tight: Recording) -> None:
    config = msgspec.structs.replace(tight.config, core={**tight.config.core, "token_budget": 15})
    report = replay(Recording(tight.path, config, tight.events))
    assert report.difference is not None
    assert "recorded" in str(report.difference)


def test_a_longer_prompt_is_found(tight: Recording) -> None:
    index = next(i for i, event in enumerate(tight.events) if isinstance(event, events.Added))
    event = msgspec.structs.replace(tight.events[index], prompt=[*tight.events[index].prompt, 1])
    report = replay(with_events(tight, [event if i == index else e for i, e in enumerate(tight.events)]))
    assert report.difference is not None
    assert report.difference.step == 0


# -- what is told of a stormy run ------------------------------------------------------------------


def test_told_counts_obey_the_ledger(tight: Recording) -> None:
    story = tell(tight, 0, tight.num_steps)
    for step in story.steps:
        for piece in step.slices:
            before, planned = piece.before, piece.planned
            assert planned.num_computed == piece.first_position + piece.num_scheduled
            assert planned.num_in_flight == before.num_in_flight + piece.num_scheduled
            assert planned.num_tokens == before.num_tokens
            assert planned.num_promised == before.num_promised + piece.samples * (1 + piece.num_drafts)
            assert piece.num_scheduled <= piece.need
        if step.slices:
            assert step.slices[-1].token_budget_left == step.token_budget_left
            assert step.slices[-1].input_budget_left == step.input_budget_left
            assert step.token_budget == COMMON["token_budget"]


def test_every_step_has_its_end(tight: Recording) -> None:
    story = tell(tight, 0, tight.num_steps)
    failed = {event.step for event in tight.events if isinstance(event, events.Failed)}
    assert failed
    assert {step.step for step in story.steps if step.outcome == "fail"} == failed
    assert all(step.outcome in ("commit", "fail", "empty") for step in story.steps)


def test_the_timeline_of_a_stormy_run_has_an_end_for_every_beginning(tight: Recording) -> None:
    rows = perfetto(tight)["traceEvents"]
    begins = [row["id"] for row in rows if row["ph"] == "b"]
    assert begins == [row["id"] for row in rows if row["ph"] == "e"] == list(range(tight.num_steps))
    ends: dict[int, float] = {}
    for row in (row for row in rows if row["ph"] == "X"):
        assert row["ts"] >= ends.get(row["tid"], 0.0)
        ends[row["tid"]] = row["ts"] + row["dur"]

"""Recordings of NORMAL engines replay to the same plans: companions, ended sequences, and prompt plans that a second
vote discarded and nobody recorded."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from headrace._core import Scheduler
from headrace.contract.plan import Note, Role
from headrace.contract.request import Request, SamplingParams
from headrace.engine.engine import Engine
from headrace.engine.phase_voted import PhaseVoted
from headrace.lab.replay import replay
from headrace.obs.events import Planned
from headrace.obs.recorder import Recorder
from headrace.obs.recording import read_recording
from headrace.parallel.vote import Ballot
from headrace.worker.fake import FakeWorker


class Wishful(PhaseVoted):
    """Always wants a prompt step, as a probe that is wrong would."""

    def _ballot(self, core: Scheduler) -> Ballot:
        ballot = super()._ballot(core)
        return Ballot(True, ballot.decodes, ballot.decode_step, ballot.time_budget_ns)


class Pair:
    """The collective of a group of two whose other rank agrees, always decodes, and has a prompt every third time."""

    rank, size = 0, 2

    def __init__(self) -> None:
        self._asked = 0

    def least(self, values: list[int]) -> list[int]:
        if len(values) > 1:
            return [*values[:2], 0, *values[3:]]
        self._asked += 1
        return values if self._asked % 3 else [0]

    def close(self) -> None:
        pass


def run_recorded(path: Path, seed: int, cadence: PhaseVoted, **settings: object) -> None:
    random = Random(seed)
    settings = {"num_blocks": 14, "block_size": 4, "max_model_len": 40, "token_budget": 12, "max_seqs": 3} | settings
    settings |= {"role": int(Role.NORMAL), "full_sequence_must_fit": False}
    engine = Engine(
        Scheduler(**settings),
        FakeWorker(),
        cadence=cadence,
        overlap=seed % 2 == 0,
        observer=Recorder.open(path, settings),
    )
    for i in range(12):
        prompt = [random.randrange(9) for _ in range(50 if i == 5 else random.choice([3, 10, 20]))]  # 50: never served
        sampling = SamplingParams(max_tokens=random.randint(1, 12))
        engine.submit(Request(request_id=str(i), prompt_token_ids=prompt, sampling=sampling, eos_ids=()))
        for _ in range(random.randrange(4)):
            engine.tick()
    for _ in range(300):
        engine.tick()
    assert len(engine._book) == 0
    engine.close()


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("stop_preempted", [False, True])
def test_replayed_plan_for_plan(tmp_path: Path, seed: int, stop_preempted: bool) -> None:
    cadences = {
        "voted": PhaseVoted(all_interval=4),
        "wishful": Wishful(all_interval=1),
        "budgeted": PhaseVoted(all_interval=2, time_budget_ns=40),
        "in a pair": Wishful(Pair(), all_interval=2),
    }
    notes: set[int] = set()
    empty_steps = 0
    for name, cadence in cadences.items():
        path = tmp_path / name
        run_recorded(path, seed, cadence, stop_preempted=stop_preempted, prefill_cost=(1.0, 5.0, 0.1))
        recording = read_recording(path)
        report = replay(recording)
        assert report.ok, (name, str(report.difference))
        plans = [event for event in recording.events if isinstance(event, Planned)]
        notes |= {code for plan in plans for code in plan.note_codes}
        empty_steps += sum(plan.step >= 0 and not plan.seq_ids for plan in plans)
    assert Note.IGNORED in notes
    assert empty_steps > 0

"""One test per entry of the list of what the overlapped loop takes for granted: assumed, and put right when wrong."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from core_device import CoreDevice, prompt
from test_engine import ask, drain, make, model_answer
from test_speculating_engine import speculating

from headrace._core import fill_unknown_ids
from headrace.contract.plan import Finish, Note, Outcome
from headrace.engine.optimism import ASSUMPTIONS, NOT_OPTIMISTIC
from headrace.worker.device import DeviceThread
from headrace.worker.fake import FakeStep, FakeWorker

ROOT = Path(__file__).resolve().parents[2]


def test_every_entry_has_a_test_and_is_told() -> None:
    told = (ROOT / "docs" / "overlap.md").read_text()
    names = [entry.name for entry in ASSUMPTIONS] + [name for name, _ in NOT_OPTIMISTIC]
    assert [name for name in names if f"test_{name}" not in globals()] == []
    assert [name for name in names if f"`{name}`" not in told] == []


def test_progress() -> None:
    device = CoreDevice(shadow=True)
    device.add(0, 9, max_tokens=3)
    device.plan()
    assert device.counts(0)["num_computed"] == 9 == device.counts(0)["num_in_flight"]
    assert device.fail() == [0]
    assert device.counts(0)["num_computed"] == device.counts(0)["num_in_flight"] == 0
    device.run_dry(overlap=True)
    device.check_outputs()


def test_promised_token() -> None:
    device = CoreDevice(shadow=True)
    device.add(0, 6, max_tokens=3)
    device.plan()
    assert device.plan() == {0: 1}  # its input is not known yet
    starts, last = np.array([0, 1], dtype=np.int32), np.array([41, 42], dtype=np.int32)
    ids = np.array([-1], dtype=np.int32)
    fill_unknown_ids(ids, starts, np.array([1], dtype=np.int32), last)
    assert ids.tolist() == [42]
    for previous, sampled in ((-1, last), (1, np.array([41, -1], dtype=np.int32))):
        ids = np.array([-1], dtype=np.int32)
        with pytest.raises(ValueError, match="input_ids"):
            fill_unknown_ids(ids, starts, np.array([previous], dtype=np.int32), sampled)


def test_goes_on() -> None:
    """The token in flight is an end: the next step computes one row in vain and emits nothing for it."""
    outputs = model_answer([1, 2, 3], 10)
    end = next(i for i in range(2, 10) if outputs[i] not in outputs[:i])
    computed = {}
    for overlap in (False, True):
        worker = FakeWorker()
        engine = make(overlap, worker)
        engine.submit(ask("r", [1, 2, 3], 10, eos=(outputs[end],)))
        story = drain(engine)["r"]
        assert (story.tokens, story.finish) == (outputs[: end + 1], "stop")
        assert engine.core.num_used_blocks == 0
        computed[overlap] = worker.num_tokens
        assert engine.stats.gone_tokens == int(overlap)
    assert computed[True] == computed[False] + 1


def test_not_aborted() -> None:
    device = CoreDevice(shadow=True)
    device.add(0, 6, max_tokens=5)
    device.plan()
    device.plan()
    assert device.core.finish(0)
    assert [device.commit().outcomes.tolist() for _ in range(2)] == [[Outcome.GONE]] * 2
    assert device.outputs[0] == []
    assert device.core.num_used_blocks == 0


def test_keeps_its_blocks() -> None:
    device = CoreDevice(shadow=True, num_blocks=6)
    device.add(0, prompt(0, 8), max_tokens=8)
    device.add(1, prompt(1, 8), max_tokens=8)
    device.plan()
    device.plan()
    assert device.notes(Note.PREEMPTED) == {1: 2}
    assert device.counts(1)["num_stale"] == 8
    device.plan()
    assert device.notes(Note.NOT_DRAINED) == {1: 8}  # it does not resume before its token is home
    assert device.commit().outcomes.tolist() == [Outcome.COMMITTED, Outcome.DELIVERED]
    while device.in_flight:
        device.commit()
    device.run_dry(overlap=True)
    device.check_outputs()


def test_blocks_for_promised() -> None:
    device = CoreDevice(shadow=True, block_size=4)
    device.add(0, 4, max_tokens=2)
    device.plan()
    assert device.core.num_used_blocks == 1
    device.plan()  # the promised token begins a block
    assert device.core.num_used_blocks == 2
    device.core.finish(0)
    device.commit()
    device.commit()
    assert device.core.num_used_blocks == 0


def test_registered_prefix() -> None:
    device = CoreDevice(shadow=True)
    device.add(0, 21, max_tokens=3)
    device.plan()
    device.add(1, 21, max_tokens=3)
    assert device.plan() == {0: 1, 1: 1}  # a hit on blocks that are being written
    device.fail()
    assert device.commit().outcomes.tolist() == [Outcome.DROPPED] * 2
    assert device.plan() == {0: 21, 1: 1}
    device.commit()
    device.run_dry()
    device.check_outputs()


def test_step_order() -> None:
    device, seen, gate = DeviceThread(), [], threading.Event()
    tickets = [device.launch(lambda: gate.wait(10))]
    tickets += [device.launch(lambda i=i: seen.append(i)) for i in range(20)]
    assert seen == []
    gate.set()
    for ticket in tickets:
        ticket.result(10)
    assert seen == list(range(20))
    device.close()


def test_reserved_drafts() -> None:
    """Some of the guesses are wrong: the next step was planned past them, and the answer is that of plain decoding."""
    engine = speculating(overlap=True)
    for i in range(4):
        engine.submit(ask(f"r{i}", [i, 2, 3, 4], max_tokens=24))
    stories = drain(engine)
    stats = engine.stats
    assert 0 < stats.accepted_drafts < stats.verified_drafts
    assert [stories[f"r{i}"].tokens for i in range(4)] == [model_answer([i, 2, 3, 4], 24) for i in range(4)]
    assert engine.core.num_used_blocks == 0


def test_max_tokens() -> None:
    device = CoreDevice(shadow=True)
    device.add(0, 6, max_tokens=2)
    assert [device.plan(), device.plan(), device.plan()] == [{0: 6}, {0: 1}, {}]
    device.commit()
    device.commit()
    assert device.finishes == {0: Finish.LENGTH}


class OrderedWorker(FakeWorker):
    """Writes down what the loop does to it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, int]] = []

    def launch_forward(self, plan: Any, starts: Any) -> FakeStep:
        self.calls.append(("forward", plan.step))
        return super().launch_forward(plan, starts)

    def launch_sample(self, handle: FakeStep) -> None:
        self.calls.append(("sample", handle.plan.step))
        super().launch_sample(handle)

    def collect(self, handle: FakeStep, timeout_s: float) -> Any:
        self.calls.append(("collect", handle.plan.step))
        return super().collect(handle, timeout_s)


@pytest.mark.parametrize("overlap", [False, True])
def test_sampling(overlap: bool) -> None:
    """Sampling of a step is launched after the one before was collected, in both loops."""
    worker = OrderedWorker()
    engine = make(overlap, worker)
    engine.submit(ask("r", [1, 2, 3], 4))
    drain(engine)
    calls = worker.calls
    for step in range(1, 4):
        assert calls.index(("collect", step - 1)) < calls.index(("sample", step))
        ahead = calls.index(("forward", step)) < calls.index(("collect", step - 1))
        assert ahead == overlap

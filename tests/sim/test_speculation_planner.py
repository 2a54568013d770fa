"""The verification planner and the guard inside the true engine: what is verified follows cost and chances."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from core_device import CoreDevice, prompt
from test_engine import ask, drain, model_answer
from test_speculating_engine import guess

from headrace._core import Scheduler, StepCost
from headrace.contract.result import StepResult
from headrace.engine.drafting import CostWatch, Drafting
from headrace.engine.engine import Engine
from headrace.speculation.guard import Guard
from headrace.worker.fake import FakeStep, FakeWorker

STAIRCASE = StepCost(sizes=[2, 4, 6], times_ms=[1.0, 1.2, 2.0])


def decoding_pair(**settings: object) -> CoreDevice:
    """A and B of example D-E3: both decode, with two drafts each and the example's confidences."""
    device = CoreDevice(token_budget=64, **settings)
    for seq_id in (0, 1):
        device.add(seq_id, prompt(seq_id, 5), max_tokens=20)
    device.step()
    for seq_id, confidences in ((0, [0.9, 0.5]), (1, [0.8, 0.25])):
        device.core.set_drafts(seq_id, [7, 7])
        device.core.set_confidences(seq_id, confidences)
    return device


def test_example_d_e3_holds_where_steps_are_mixed() -> None:
    device = decoding_pair()
    device.core.set_cost(STAIRCASE)
    assert device.plan() == {0: 2, 1: 2}
    assert device.plan_seen.num_drafts.tolist() == [1, 1]


def test_without_a_cost_every_draft_is_verified() -> None:
    assert decoding_pair().plan() == {0: 3, 1: 3}


def test_a_sequence_in_its_prefill_is_no_part_of_the_choice() -> None:
    device = decoding_pair()
    device.core.set_cost(STAIRCASE)
    device.add(2, prompt(2, 9), max_tokens=20)
    assert device.plan() == {0: 2, 1: 2, 2: 9}


class TimedWorker(FakeWorker):
    """Reports a device time per step: one unit, and ``per_row`` of it for each row beyond the sequences'."""

    per_row = 0.0

    def collect(self, handle: FakeStep, timeout_s: float) -> StepResult:
        result = super().collect(handle, timeout_s)
        assert result.speculated is not None
        extra = int(result.speculated.verified.sum())
        rows = len(handle.plan.seq_ids) + extra
        report = replace(result.speculated, rows=rows, forward_ms=1.0 + self.per_row * extra)
        return replace(result, speculated=report)


def timed_engine(per_row: float, published: list[StepCost]) -> Engine:
    worker = TimedWorker(guess=lambda tokens, most: guess(tokens, most))
    worker.per_row = per_row
    costs = CostWatch([1, 2, 4, 8], [1.0, 1.0, 1.0, 1.0], published.append)
    core = Scheduler(num_blocks=200, block_size=4, token_budget=64, max_seqs=4, max_model_len=400)
    return Engine(core, worker, overlap=False, drafting=Drafting(5, costs, Guard()))


@pytest.mark.parametrize(("per_row", "pauses"), [(0.0, False), (5.0, True)])
def test_the_guard_pauses_and_says_so(per_row: float, pauses: bool, caplog: pytest.LogCaptureFixture) -> None:
    """The curve claims that rows are free. Where they are not, measured steps say so."""
    published: list[StepCost] = []
    engine = timed_engine(per_row, published)
    engine.submit(ask("a", [1, 2, 3], max_tokens=200))
    states = {engine.stats.speculating}  # before any step, too
    with caplog.at_level(logging.INFO, logger="headrace.engine.drafting"):
        while engine.intake.busy or not engine.idle:
            engine.tick()
            states.add(engine.stats.speculating)
    assert states == ({True, False} if pauses else {True})
    levels = [record.levelno for record in caplog.records if "paused: gain" in record.getMessage()]
    assert levels[:1] == ([logging.WARNING] if pauses else [])  # seen where nobody has asked for a log
    assert set(levels[1:]) <= {logging.INFO}
    assert len(published) > 1


@pytest.mark.parametrize("per_row", [0.0, 0.4, 5.0])
def test_pauses_and_trimming_change_no_token(per_row: float) -> None:
    engine = timed_engine(per_row, [])
    prompts: dict[str, Sequence[int]] = {f"r{i}": [i + 1] * (3 + i) for i in range(4)}
    for name, tokens in prompts.items():
        engine.submit(ask(name, list(tokens), max_tokens=60))
    stories = drain(engine)
    assert {name: s.tokens for name, s in stories.items()} == {n: model_answer(list(p), 60) for n, p in prompts.items()}


def test_measured_steps_correct_the_curve() -> None:
    """Rows that cost more than the curve says: the slope rises, and the planner is told."""
    published: list[StepCost] = []
    engine = timed_engine(0.5, published)
    engine.submit(ask("a", [1, 2, 3], max_tokens=200))
    drain(engine)
    assert published[0].slope_ms == 0
    assert max(cost.slope_ms for cost in published) > 0.1
    assert np.isfinite(published[-1].time_ms(4, 1))

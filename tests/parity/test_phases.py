"""Prompts and decoding planned apart do not change one bit of the results; a fork goes on like its own request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from harness import make_engine, outcome_of, request, run
from test_parity import bits, prompts, requests, singles

from headrace.contract.plan import Role, SequenceStart, StepKind
from headrace.contract.request import SamplingParams
from headrace.contract.result import TokenDelta
from headrace.engine.hand_over import Giver, Taker
from headrace.engine.local_hand_off import LocalHandOff
from headrace.engine.phase_voted import OneKind, PhaseVoted
from headrace.models.context import Model


def normal_engine(model: Model, intervals: dict[str, int] | None = None, **limits: Any) -> Any:
    engine = make_engine(model, role=int(Role.NORMAL), **limits)
    engine._cadence = PhaseVoted(**(intervals or {}))
    return engine


@pytest.mark.parametrize("overlap", [False, True], ids=["sync", "overlap"])
def test_normal_engine(model: Model, overlap: bool) -> None:
    """Chunked prompts, a few decode steps between prompt steps, and a pool that makes some give way."""
    expected, groups, preempted = singles(model), len(model.kv_layout.groups), 0
    for intervals, limits in (
        ({"all_interval": 3, "any_interval": 5}, {"token_budget": 16}),
        ({}, {"num_blocks": 20 * groups, "token_budget": 9, "max_seqs": 3}),
        ({"all_interval": 1}, {"num_blocks": 14 * groups, "full_sequence_must_fit": False, "max_model_len": 50}),
    ):
        engine = normal_engine(model, intervals, overlap=overlap, **limits)
        assert bits(run(engine, requests())) == expected
        preempted += engine.core.num_preemptions
        engine.close()
    assert preempted > 0


class Steps:
    """A NORMAL scheduler and a real worker, step by step."""

    def __init__(self, model: Model) -> None:
        self.engine = normal_engine(model, overlap=False)
        self.core = self.engine.core
        self.tokens: dict[int, list[int]] = {}

    def step(self, kind: StepKind) -> Any:
        plan = self.core.plan(int(kind))
        starts = [
            SequenceStart(int(plan.seq_ids[s]), 1, SamplingParams(temperature=0.0), ()) for s in plan.fresh_slices
        ]
        handle = self.engine.worker.launch_forward(plan, starts)
        self.engine.worker.launch_sample(handle)
        result = self.engine.worker.collect(handle, 60.0)
        self.core.commit(result.step, result.num_valid, result.offsets, result.tokens)
        for i, seq_id in enumerate(plan.seq_ids.tolist()):
            self.tokens.setdefault(seq_id, []).extend(result.tokens[result.offsets[i] : result.offsets[i + 1]].tolist())
        return plan


@pytest.mark.parametrize("length", [4, 6, 8, 11])
def test_a_fork_goes_on_like_a_request_of_its_own(model: Model, length: int) -> None:
    prompt = prompts(1, seed=length, low=length, high=length + 1)[0]
    others = [7, 13]
    expected = []
    for token in others:
        engine = make_engine(model, overlap=False)
        expected += [run(engine, [request([*prompt, token], max_tokens=6)])[0].token_ids]
        engine.close()

    steps = Steps(model)
    steps.core.add(0, np.array(prompt, np.int32), max_tokens=20)
    steps.step(StepKind.PREFILL)
    for seq_id, token in enumerate(others, start=1):
        steps.core.fork(0, seq_id, np.array(prompt, np.int32), [token])
    plan = steps.step(StepKind.DECODE)
    groups = len(model.kv_layout.groups)
    assert len(plan.clone_blocks) == (0 if length % 4 == 0 else 2 * 2 * groups)
    for _ in range(5):
        steps.step(StepKind.DECODE)
    assert [tuple(steps.tokens[seq_id]) for seq_id in (1, 2)] == expected
    steps.engine.close()


def test_a_companion_step_runs_on_a_real_worker(tiny: Callable[[str], Model]) -> None:
    engine = normal_engine(tiny("llama"), overlap=False)
    plan = engine.core.plan(int(StepKind.PREFILL), companion=True)
    handle = engine.worker.launch_forward(plan, [])
    engine.worker.launch_sample(handle)
    result = engine.worker.collect(handle, 60.0)
    assert (result.step, len(result.tokens), result.offsets.tolist()) == (plan.step, 0, [0])
    engine.core.commit(result.step, result.num_valid, result.offsets, result.tokens)
    assert engine.core.num_steps_in_flight == 0
    engine.close()


@pytest.mark.parametrize("overlap", [False, True], ids=["sync", "overlap"])
def test_sequences_handed_over_go_on_to_the_bit(model: Model, overlap: bool) -> None:
    """Two engines with pools of their own, poisoned: what was not copied cannot be read unnoticed."""
    port = LocalHandOff(capacity=2)
    prompt = make_engine(model, role=int(Role.PROMPT), overlap=False, token_budget=16)
    completion = make_engine(
        model, role=int(Role.COMPLETION), stop_preempted=True, overlap=overlap, num_blocks=300, max_seqs=3
    )
    prompt._cadence, prompt._relay = OneKind(StepKind.PREFILL), Giver(port, prompt.worker)
    completion._cadence, completion._relay = OneKind(StepKind.DECODE), Taker(port, completion.worker)
    items = requests()
    for item in items:
        prompt.submit(item)
    deltas: dict[str, list[TokenDelta]] = {item.request_id: [] for item in items}
    for _ in range(2000):
        for delta in prompt.tick() + completion.tick():
            deltas[delta.request_id].append(delta)
        if prompt.quiet and completion.quiet and port.num_waiting == 0:
            break
    assert bits([outcome_of(deltas[item.request_id]) for item in items]) == singles(model)
    for engine in (prompt, completion):
        assert engine.core.num_used_blocks == 0
        engine.close()


@pytest.mark.parametrize("overlap", [False, True], ids=["sync", "overlap"])
@pytest.mark.parametrize("length", [1, 2, 8, 9, 23])
def test_choices_that_share_a_prompt_are_those_drawn_alone(model: Model, length: int, overlap: bool) -> None:
    prompt = prompts(1, seed=length, low=length, high=length + 1)[0]

    def choices() -> list[Any]:
        made = [request(prompt, max_tokens=7, temperature=1.0, seed=seed, presence_penalty=0.5) for seed in range(4)]
        return [made[0], *(msgspec.structs.replace(each, shares=made[0].request_id) for each in made[1:])]

    expected = []
    for each in choices():
        engine = make_engine(model, overlap=False)
        expected += run(engine, [each])
        engine.close()
    engine = normal_engine(model, overlap=overlap, token_budget=16)
    assert bits(run(engine, choices())) == bits(expected)
    assert engine.stats.scheduled_tokens <= length + 4 * 7 + 3 or length == 1
    engine.close()

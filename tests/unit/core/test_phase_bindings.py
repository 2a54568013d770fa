"""Roles and phases through the binding: what mirrors, what is refused, what a fork and a hand-over look like."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace._core import InvalidField, Scheduler
from headrace.contract.plan import Ignored, Role, StepKind

PROMPT = np.arange(6, dtype=np.int32)
TYPES = (Path(__file__).parents[3] / "csrc" / "core" / "types.h").read_text()


def scheduler(role: Role = Role.NORMAL, **settings: Any) -> Scheduler:
    limits = {"num_blocks": 20, "block_size": 4, "max_model_len": 60, "stop_preempted": role == Role.COMPLETION}
    return Scheduler(role=int(role), **limits | settings)


def commit(core: Scheduler, plan: Any, token: int = 9) -> None:
    offsets = np.concatenate([[0], np.cumsum(plan.samples)]).astype(np.int32)
    tokens = np.full(offsets[-1], token, np.int32)
    core.commit(plan.step, np.array(plan.num_scheduled), offsets, tokens)


@pytest.mark.parametrize("mirror", [Role, Ignored])
def test_enumerations_are_equal_on_both_sides(mirror: type) -> None:
    body = TYPES.split(f"enum class {mirror.__name__} ")[1].split("};")[0]
    for item in mirror:  # type: ignore[attr-defined]
        name = "k" + "".join(word.capitalize() for word in item.name.split("_"))
        assert f"{name} = {int(item)}," in body
    assert body.count(" = ") == len(list(mirror))  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("knob", "settings"),
    [
        ("role", {"role": 4}),
        ("role", {"role": -1}),
        ("cp_size", {"cp_size": 0}),
        ("token_budget", {"cp_size": 8, "token_budget": 15}),
        ("min_slice", {"min_slice": 0}),
        ("min_slice", {"min_slice": 9, "long_prefill_threshold": 8}),
        ("max_sum_keys", {"max_sum_keys": -1}),
        ("prefill_cost", {"prefill_cost": (0.0, float("nan"), 0.0)}),
        ("stop_preempted", {"role": int(Role.COMPLETION), "stop_preempted": False}),
        ("cp_size", {"role": int(Role.UNIFIED), "cp_size": 2}),
    ],
)
def test_knobs_that_cannot_work_are_named(knob: str, settings: dict[str, Any]) -> None:
    role = settings.pop("role", int(Role.NORMAL))
    with pytest.raises(InvalidField, match=rf"^{knob}: "):
        Scheduler(**{"num_blocks": 20, "block_size": 4, "max_model_len": 60, "role": role} | settings)


def test_bad_arguments_are_named() -> None:
    core = scheduler()
    with pytest.raises(InvalidField, match=r"^time_budget_ns: "):
        core.plan(int(StepKind.PREFILL), time_budget_ns=-1)
    with pytest.raises(InvalidField, match=r"^kind: "):
        core.plan(int(StepKind.MIXED))
    with pytest.raises(InvalidField, match=r"^checkpoints: "):
        core.add(0, PROMPT, checkpoints=[6])
    with pytest.raises(InvalidField, match=r"^outputs: "):
        core.add(0, PROMPT, outputs=[3])
    with pytest.raises(InvalidField, match=r"^parent: "):
        core.fork(0, 1, PROMPT, [3])
    with pytest.raises(InvalidField, match=r"^id: "):
        core.place(0)
    with pytest.raises(InvalidField, match=r"^checkpoints: "):
        scheduler(Role.UNIFIED).add(0, PROMPT, checkpoints=[3])
    assert core.num_unfinished == 0


def test_a_fork_shares_and_then_clones() -> None:
    core = scheduler()
    core.add(0, PROMPT, max_tokens=5)
    commit(core, core.plan(int(StepKind.PREFILL)))
    core.fork(0, 1, PROMPT, [7])
    assert core.prompted_ids() == [0, 1]
    assert core.inspect(1)["blocks"] == core.inspect(0)["blocks"]
    plan = core.plan(int(StepKind.DECODE))
    (mine,), (its,) = core.inspect(0)["blocks"], core.inspect(1)["blocks"]
    assert plan.clone_blocks.tolist() == [mine[1], its[1]]
    assert core.running_ids() == [0, 1]
    assert core.inspect(1)["tokens"] == [*PROMPT, 7]


def test_a_hand_over_from_a_prompt_engine_to_a_completion_engine() -> None:
    """Counts only: the second engine's blocks are the caller's to fill."""
    prompt, completion = scheduler(Role.PROMPT), scheduler(Role.COMPLETION)
    prompt.add(0, PROMPT, max_tokens=5)
    commit(prompt, prompt.plan(int(StepKind.PREFILL)))
    seen = prompt.inspect(prompt.prompted_ids()[0])
    completion.add(0, PROMPT, max_tokens=5, outputs=seen["tokens"][6:])
    assert completion.place(0)
    assert len(completion.inspect(0)["blocks"][0]) == len(seen["blocks"][0])
    assert prompt.finish(0)
    assert completion.plan(int(StepKind.DECODE)).step == -1  # not ready
    completion.set_ready(0, True)
    for _ in range(4):
        plan = completion.plan(int(StepKind.DECODE))
        assert plan.num_scheduled.tolist() == [1]
        commit(completion, plan)
    assert completion.num_unfinished == prompt.num_used_blocks == completion.num_used_blocks == 0

"""The last steps at a glance: few are kept, and a time finds its step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from headrace.contract.result import StepTimes
from headrace.contract.stats import EngineStats, total_stats
from headrace.engine.last_steps import LastSteps


def plan(step: int) -> Any:
    return SimpleNamespace(step=step, token_budget_left=5, num_free_blocks=3, num_waiting=2)


def test_few_are_kept_and_times_find_their_steps() -> None:
    last = LastSteps(kept=3)
    for step in range(5):
        last.launched(plan(step), "decode", 2, 7)
        last.finished(step - 1, StepTimes(0, 1_000_000, 1_500_000, 2_000_000))  # the one before, as the loop does
    last.finished(1, StepTimes(0, 9, 9, 9))  # forgotten meanwhile
    last.finished(4, None)
    steps = last.snapshot()
    assert [(step.step, step.ms) for step in steps] == [(2, 1.5), (3, 1.5), (4, None)]
    assert (steps[0].kind, steps[0].sequences, steps[0].tokens, steps[0].free_blocks) == ("decode", 2, 7, 3)
    assert total_stats([EngineStats(last_steps=steps), EngineStats()]).last_steps == steps

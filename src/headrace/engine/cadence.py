"""Cadence: which kind of step comes next. A small policy in Python; the planning itself is C++."""

from __future__ import annotations

from typing import Protocol

from headrace._core import Scheduler
from headrace.contract.plan import StepKind, StepPlan


class Cadence(Protocol):
    """Decides the kind of the next step and has it planned; None when nothing can run."""

    def plan(self, core: Scheduler) -> StepPlan | None: ...


class Unified:
    """The token-budget discipline: every step is MIXED."""

    def plan(self, core: Scheduler) -> StepPlan | None:
        plan = core.plan(int(StepKind.MIXED))
        return plan if plan.step >= 0 else None

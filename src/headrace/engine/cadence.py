"""Cadence: which kind of step comes next. A small policy in Python; the planning itself is C++.

It hands on every plan the core makes, empty ones too (``step`` is -1): they may have preempted a sequence, and a
recording that left them out could not be replayed.
"""

from __future__ import annotations

from typing import Protocol

from headrace._core import Scheduler
from headrace.contract.plan import StepKind, StepPlan

_MIXED = int(StepKind.MIXED)  # once: an enum's member costs a look-up each time


class Cadence(Protocol):
    """Decides the kind of the next step and has it planned; the plan has no slices when nothing can run."""

    @property
    def can_fork(self) -> bool:
        """Whether choices of one prompt may begin as forks of the first."""
        ...

    def plan(self, core: Scheduler) -> StepPlan: ...

    def votes(self) -> tuple[dict[str, int], float]:
        """Decisions so far by their outcome, and the seconds spent on them."""
        ...

    def close(self) -> None:
        """Leaves the group, if there is one."""
        ...


class Unified:
    """The token-budget discipline: every step is MIXED."""

    can_fork = False

    def plan(self, core: Scheduler) -> StepPlan:
        plan: StepPlan = core.plan(_MIXED)
        return plan

    def votes(self) -> tuple[dict[str, int], float]:
        return {}, 0.0

    def close(self) -> None:
        pass

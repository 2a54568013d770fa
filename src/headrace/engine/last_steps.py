"""The last steps as anybody may see them while the engine runs: what each was made of, what it had left, its time.

A glance, not a recording: it keeps a few steps and forgets the rest. For everything else there is the flight recorder.
"""

from __future__ import annotations

from collections import deque

from headrace.contract.plan import StepPlan
from headrace.contract.result import StepTimes
from headrace.contract.stats import StepGlance

KEPT = 24


class LastSteps:
    """Owned by the loop's thread; ``snapshot`` copies."""

    def __init__(self, kept: int = KEPT) -> None:
        self._steps: deque[StepGlance] = deque(maxlen=kept)

    def launched(self, plan: StepPlan, kind: str, sequences: int, tokens: int) -> None:
        """``kind``: what is in it, as the metrics say it. The counts are the plan's; whoever calls has them at hand."""
        self._steps.append(
            StepGlance(
                step=plan.step,
                kind=kind,
                sequences=sequences,
                tokens=tokens,
                budget_left=plan.token_budget_left,
                free_blocks=plan.num_free_blocks,
                waiting=plan.num_waiting,
            )
        )

    def finished(self, step: int, times: StepTimes | None) -> None:
        """Its device time is known; one that has been forgotten meanwhile is passed over."""
        if times is None:
            return
        for index in range(len(self._steps) - 1, -1, -1):
            if self._steps[index].step == step:
                self._steps[index] = self._steps[index].took(times.busy_ns / 1e6)
                return

    def snapshot(self) -> list[StepGlance]:
        """Oldest first."""
        return list(self._steps)

"""StepCounts: what the loop counts as it goes, and the snapshot of it that others may see."""

from __future__ import annotations

from collections.abc import Callable

from headrace._core import Scheduler
from headrace.contract.plan import StepPlan
from headrace.contract.stats import EngineStats

GraphSteps = Callable[[], dict[str, int]]
"""Steps so far by graph mode; asked on the loop's thread after each turn."""


class StepCounts:
    """Owned by the loop's thread. ``snapshot`` is cheap: it reads numbers that exist anyway."""

    def __init__(
        self, core: Scheduler, graph_steps: GraphSteps | None = None, kv_store: GraphSteps | None = None
    ) -> None:
        self._core = core
        self._graph_steps = graph_steps or dict
        self._kv_store = kv_store or dict
        self.steps = 0
        self.failed_steps = 0
        self.scheduled_tokens = 0
        self.decode_tokens = 0
        self.sampled_tokens = 0
        self.token_budget_left = 0

    def launched(self, plan: StepPlan) -> None:
        """A slice of one token decodes; longer slices are prefill (or carry drafts)."""
        self.steps += 1
        self.scheduled_tokens += plan.total_tokens
        self.decode_tokens += int((plan.num_scheduled == 1).sum())
        self.token_budget_left = plan.token_budget_left

    def snapshot(self) -> EngineStats:
        core = self._core
        return EngineStats(
            running=core.num_running,
            waiting=core.num_waiting,
            num_blocks=core.num_blocks,
            used_blocks=core.num_used_blocks,
            prefix_queries=core.prefix_queries,
            prefix_hits=core.prefix_hits,
            preemptions=core.num_preemptions,
            steps=self.steps,
            failed_steps=self.failed_steps,
            scheduled_tokens=self.scheduled_tokens,
            decode_tokens=self.decode_tokens,
            sampled_tokens=self.sampled_tokens,
            token_budget_left=self.token_budget_left,
            graph_steps=self._graph_steps(),
            kv_store=self._kv_store(),
        )

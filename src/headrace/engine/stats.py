"""StepCounts: what the loop counts as it goes, and the snapshot of it that others may see."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Any

import numpy as np

from headrace._core import Scheduler
from headrace.contract.plan import IntArray, StepPlan
from headrace.contract.stats import EngineStats, ExpertLoad
from headrace.obs.metrics import STEP_TOKENS

from .last_steps import LastSteps
from .overlap import OverlapMeter

Votes = Callable[[], tuple[dict[str, int], float]]
"""Decisions of a voted group so far by their outcome, and the seconds spent on them."""
GraphSteps = Callable[[], dict[str, int]]
"""Steps so far by graph mode; asked on the loop's thread after each turn."""


class StepCounts:
    """Owned by the loop's thread. ``snapshot`` is cheap: it reads numbers that exist anyway."""

    def __init__(
        self,
        core: Scheduler,
        graph_steps: GraphSteps | None = None,
        votes: Votes | None = None,
        kv_store: GraphSteps | None = None,
        expert_load: Callable[[], ExpertLoad] | None = None,
    ) -> None:
        self._core = core
        self._graph_steps = graph_steps or dict
        self._votes: Votes = votes or (lambda: ({}, 0.0))
        self._kv_store = kv_store or dict
        self._expert_load = expert_load or ExpertLoad
        self.steps = 0
        self.failed_steps = 0
        self.scheduled_tokens = 0
        self.decode_tokens = 0
        self.sampled_tokens = 0
        self.token_budget_left = 0
        self.overlap = OverlapMeter()
        self.last = LastSteps()
        self.verified_drafts = 0
        self.accepted_drafts = 0
        self.drafted_sequences = 0
        self._by_accepted = np.zeros(1, np.int64)  # slices by how many of their drafts were emitted
        self.speculating = False
        self.prefill_steps = 0
        self.mixed_steps = 0
        self.company_steps = 0
        self.budget_tokens = 0
        self.size_tokens = 0
        self.gone_tokens = 0
        self.dropped_tokens = 0
        self._size_counts = [0] * (len(STEP_TOKENS) + 1)
        self.attended = 0

    def launched(self, plan: StepPlan) -> None:
        """A slice of one token decodes, whatever drafts it has; longer slices are prefill. Drafts are counted when it
        is known how many there were."""
        self.steps += 1
        size, (slices, tokens, decoding, attended) = plan.total_tokens, plan.sums
        self.token_budget_left = plan.token_budget_left
        self.budget_tokens += size + plan.token_budget_left
        self.size_tokens += size
        self._size_counts[bisect_left(STEP_TOKENS, size)] += 1
        self.scheduled_tokens += tokens
        self.decode_tokens += decoding
        self.attended += attended
        kind = "company" if not slices else "decode" if decoding == slices else "mixed" if decoding else "prefill"
        self.company_steps += kind == "company"
        self.prefill_steps += kind == "prefill"
        self.mixed_steps += kind == "mixed"
        self.last.launched(plan, kind, slices, size)

    def committed(self, commit: Any) -> None:
        """A step's results are in the core (its CommitResult): what was computed for nobody?"""
        self.gone_tokens += commit.gone_tokens
        self.dropped_tokens += commit.dropped_tokens

    def speculated(self, verified: IntArray, accepted: IntArray) -> None:
        """A step's drafts are back: of each slice (S,) how many were verified, and how many of them were emitted."""
        total = int(verified.sum())
        self.scheduled_tokens += total
        self.decode_tokens += total
        self.verified_drafts += total
        self.accepted_drafts += int(accepted.sum())
        self.drafted_sequences += int((verified > 0).sum())
        more = np.bincount(accepted, minlength=len(self._by_accepted))
        more[: len(self._by_accepted)] += self._by_accepted
        self._by_accepted = more

    def snapshot(self) -> EngineStats:
        core = self._core
        votes, vote_wait_s = self._votes()
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
            prefill_steps=self.prefill_steps,
            mixed_steps=self.mixed_steps,
            company_steps=self.company_steps,
            budget_tokens=self.budget_tokens,
            size_tokens=self.size_tokens,
            size_counts=list(self._size_counts),
            gone_tokens=self.gone_tokens,
            dropped_tokens=self.dropped_tokens,
            attended=self.attended,
            token_budget_left=self.token_budget_left,
            verified_drafts=self.verified_drafts,
            accepted_drafts=self.accepted_drafts,
            drafted_sequences=self.drafted_sequences,
            accepted_at=self._by_accepted[:0:-1].cumsum()[::-1].tolist(),  # whoever has k had those before it
            speculating=self.speculating,
            graph_steps=self._graph_steps(),
            overlap=self.overlap.snapshot(),
            last_steps=self.last.snapshot(),
            votes=votes,
            vote_wait_s=vote_wait_s,
            kv_store=self._kv_store(),
            experts=self._expert_load(),
        )

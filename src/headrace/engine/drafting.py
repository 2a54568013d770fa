"""Drafting: the engine's side of speculation. Reserves rows for drafts, hands their chances to the planner, counts.

The ids themselves never pass through here: a step is planned while the one before it is being sampled, so the worker
puts its newest drafts into the rows that were reserved. The scheduler only needs to know how many there may be.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace._core import Scheduler
from headrace.contract.plan import StepPlan
from headrace.contract.ports import StepObserver
from headrace.contract.result import StepResult

from .book import Book
from .stats import StepCounts

PLACEHOLDER = 0  # stands for an id the worker will know


class Drafting:
    """``most``: drafts per sequence and step. Called by the engine's thread only, around plan and commit."""

    def __init__(self, most: int) -> None:
        self._most = most

    def planned(self, core: Scheduler, plan: StepPlan, book: Book, observer: StepObserver | None) -> None:
        """Every sequence whose newest token this step brings may have drafts in the next one. Those under a grammar
        have none: what it allows behind a draft is known only once the draft is."""
        for seq_id, samples in zip(plan.seq_ids.tolist(), plan.samples.tolist()):
            entry = book.of_seq(seq_id)
            if not samples or entry is None or entry.grammar is not None:
                continue
            drafts = [PLACEHOLDER] * self._most
            core.set_drafts(seq_id, drafts)
            if observer:
                observer.drafted(seq_id, drafts)

    def finished(self, result: StepResult, commit: Any, counts: StepCounts) -> None:
        """Counts a step's drafts: accepted are those that were emitted, none behind the end of a sequence."""
        report = result.speculated
        if report is None:
            return
        emitted = np.diff(commit.offsets)
        counts.speculated(int(report.verified.sum()), int(np.minimum(report.accepted, emitted).sum()))

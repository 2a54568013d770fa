"""Drafting: the engine's side of speculation. Reserves rows for drafts, tells the planner what they cost and what their
chances are, watches whether it pays, counts.

The ids themselves never pass through here: a step is planned while the one before it is being sampled, so the worker
puts its newest drafts into the rows that were reserved. The scheduler only needs to know how many there may be.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable
from typing import Any

import numpy as np

from headrace._core import CostModel, Scheduler, StepCost
from headrace.contract.plan import StepPlan
from headrace.contract.ports import StepObserver
from headrace.contract.result import Speculated, StepResult, StepTimes
from headrace.speculation.guard import Guard, MeasuredStep

from .book import Book
from .stats import StepCounts

PLACEHOLDER = 0  # stands for an id the worker will know
PRICE_PERIOD = 16  # measured steps between two snapshots of the cost

log = logging.getLogger(__name__)


class CostWatch:
    """What steps cost: a profiled curve, corrected by measured steps. ``publish`` gets every new snapshot."""

    def __init__(self, sizes: list[int], times_ms: list[float], publish: Callable[[StepCost], None]) -> None:
        self._sizes = sizes
        self._model = CostModel(sizes, times_ms)
        self._publish = publish
        self._until_price = 0
        self._cost = self._model.snapshot()

    def plain_ms(self, num_seqs: int) -> float:
        """Of a step of one row per sequence, sampling included."""
        return self._cost.time_ms(num_seqs, num_seqs)

    def add(self, num_seqs: int, report: Speculated) -> None:
        """A step that only decoded."""
        place = bisect_left(self._sizes, report.rows)
        if place < len(self._sizes):
            self._model.add_step(self._sizes[place], report.forward_ms)
            self._model.add_sampler(num_seqs, report.sampler_ms)

    def due(self) -> StepCost | None:
        """A new snapshot, every now and then."""
        self._until_price -= 1
        if self._until_price > 0:
            return None
        self._until_price = PRICE_PERIOD
        self._cost = self._model.snapshot()
        self._publish(self._cost)
        return self._cost


class Drafting:
    """``most``: drafts per sequence and step. Without ``costs`` every draft is verified, whatever it costs. Called by
    the engine's thread only, around plan and commit. ``pause`` is told when drafts are no longer wanted, and again."""

    def __init__(
        self,
        most: int,
        costs: CostWatch | None = None,
        guard: Guard | None = None,
        pause: Callable[[bool], None] | None = None,
    ) -> None:
        self._most = most
        self._costs = costs
        self._guard = guard
        self._pause = pause or (lambda _: None)
        self._warned = False

    @property
    def on(self) -> bool:
        """Whether the next step may verify drafts."""
        return self._guard is None or self._guard.on

    def price(self, core: Scheduler, observer: StepObserver | None) -> None:
        """Before a plan: the newest cost, if it is time for it."""
        cost = self._costs.due() if self._costs is not None else None
        if cost is None:
            return
        core.set_cost(cost)
        if observer:
            observer.priced(cost)

    def planned(self, core: Scheduler, plan: StepPlan, book: Book, observer: StepObserver | None) -> None:
        """Every sequence whose newest token this step brings may have drafts in the next one."""
        if not self.on:
            return
        for seq_id, samples in zip(plan.seq_ids.tolist(), plan.samples.tolist()):
            if not samples or book.of_seq(seq_id) is None:
                continue
            drafts = [PLACEHOLDER] * self._most
            core.set_drafts(seq_id, drafts)
            if observer:
                observer.drafted(seq_id, drafts)

    def finished(
        self,
        core: Scheduler,
        plan: StepPlan,
        result: StepResult,
        commit: Any,
        counts: StepCounts,
        observer: StepObserver | None,
    ) -> None:
        """A step is back. Accepted drafts are those that were emitted, none behind the end of a sequence."""
        report = result.speculated
        if report is None:
            return
        emitted = np.diff(commit.offsets)
        counts.speculated(report.verified, np.minimum(report.accepted, emitted))
        for seq_id, confidences in report.confidences.items():
            core.set_confidences(seq_id, confidences)
            if observer:
                observer.judged(seq_id, confidences)
        if report.rows and bool((plan.num_scheduled - plan.num_drafts == 1).all()):
            self._measure(plan, report, int(emitted.sum()), result.times)
        counts.speculating = self.on

    def _measure(self, plan: StepPlan, report: Speculated, emitted: int, times: StepTimes | None) -> None:
        total_ms = report.draft_ms + report.forward_ms + report.sampler_ms
        if times is not None:  # all that the device did, the laying out of drafts too
            forward_ns = times.forward_end_ns - times.forward_start_ns
            total_ms = (forward_ns + times.sample_end_ns - times.sample_start_ns) / 1e6
        step = MeasuredStep(len(plan.seq_ids), emitted, total_ms, report.draft_ms, report.plain)
        if self._costs is not None:
            self._costs.add(step.num_seqs, report)
        if self._guard is None or self._costs is None:
            return
        if self._guard.add(step, self._costs.plain_ms(step.num_seqs)):
            self._pause(not self._guard.on)
            self._tell(self._guard)

    def _tell(self, guard: Guard) -> None:
        """The first pause is a warning, which shows unless somebody hides it; pauses come again and again."""
        if guard.on:
            log.info("speculation is tried again")
            return
        words = "speculation is paused: gain %.2f, below that of plain steps; it is tried again now and then"
        log.log(logging.INFO if self._warned else logging.WARNING, f"{words} (docs/speculation.md)", guard.gain)
        self._warned = True

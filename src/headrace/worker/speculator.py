"""Speculator: drafts, their verification, and what is learnt from it. Lives on the device thread, all of it.

A draft is accepted iff it is the token the target draws itself in that row, with the noise of that position. So what
is emitted is what plain decoding would have emitted, token for token, however many drafts were right. Drafts that were
drawn from a distribution may be judged by rejection sampling instead (``rejection``), which accepts more of them: what
is emitted then equals plain decoding in distribution, and token for token only where it is greedy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np

from headrace._core import NOTHING_DRAWN, StepCost
from headrace.contract.batch import PackedBatch
from headrace.contract.plan import IntArray, SequenceStart, StepPlan
from headrace.contract.result import Speculated
from headrace.speculation.drafter import EMPTY, Draft, Drafter, Wanted
from headrace.speculation.estimator import AcceptanceEstimator

from .grammars import Grammars
from .history import History
from .revise import Rows, lay_out, slice_rows
from .sampler import SampleRow
from .verify import choose_by_place, choose_drafts


@dataclass(slots=True)
class Verification:
    """One step's drafts, per slice of the plan (empty for slices that sample nothing), and the batch made of them."""

    batch: PackedBatch
    rows: list[Rows]
    drafts: list[Draft]
    draft_ms: float
    forward_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Run:
    """Tokens that one slice emits, and the first of the sampled rows they are from."""

    tokens: IntArray
    first: int

    @property
    def rows(self) -> IntArray:
        return np.arange(self.first, self.first + len(self.tokens), dtype=np.int32)

    @staticmethod
    def empty() -> Run:
        return Run(np.empty(0, dtype=np.int32), 0)


@dataclass(frozen=True, slots=True)
class Noted:
    """What was drafted behind a step: the confidences in it, and the milliseconds it took."""

    confidences: dict[int, list[float]] = field(default_factory=dict)
    draft_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a step: one run per sampled slice."""

    runs: list[Run]
    failed: dict[int, int]  # slices whose first row gave no token, and that row
    report: Speculated


class Speculator:
    """``most``: drafts per sequence and step at most. ``vocab_size``: the model's."""

    def __init__(self, drafter: Drafter, most: int, block_size: int, vocab_size: int) -> None:
        self.grammars = Grammars(vocab_size)
        self._drafter = drafter
        self._most = most
        self._block_size = block_size
        self._histories: dict[int, History] = {}
        self._estimator = AcceptanceEstimator()
        self.cost: StepCost | None = None  # the engine's newest; replaced whole, from another thread
        self.paused = False  # no drafts will be asked for; set from another thread, a step late at most

    def take(self, plan: StepPlan, starts: Sequence[SequenceStart]) -> None:
        """The plan's news: who is gone, who begins."""
        self.grammars.take(plan.dropped.tolist(), starts)
        for seq_id in plan.dropped.tolist():
            self._end(seq_id)
        offsets = plan.fresh_offsets.tolist()
        for i, start in enumerate(starts):
            tokens = plan.fresh_tokens[offsets[i] : offsets[i + 1]]
            self._end(start.seq_id)
            self._histories[start.seq_id] = History.of(start, tokens)
            self._drafter.begin(start.seq_id, tokens)

    def _end(self, seq_id: int) -> None:
        if self._histories.pop(seq_id, None) is not None:
            self._drafter.end(seq_id)
            self._estimator.end(seq_id)

    def revise(self, plan: StepPlan, batch: PackedBatch) -> Verification:
        """The batch as it must be computed, with the drafts this step verifies."""
        started = perf_counter()
        drafts = self._granted(plan, batch)
        drafted = perf_counter()
        rows = slice_rows(plan, batch, self._histories, [draft.ids for draft in drafts])
        return Verification(lay_out(batch, rows, self._block_size), rows, drafts, (drafted - started) * 1000)

    def _granted(self, plan: StepPlan, batch: PackedBatch) -> list[Draft]:
        """The rows the plan has reserved go to the likeliest drafts, by estimates a step newer than the plan's."""
        reserved = plan.num_drafts.tolist()
        if not any(reserved):
            return [EMPTY] * len(reserved)
        seq_ids = plan.seq_ids.tolist()
        tables = batch.block_tables
        self._ask([self._wanted(i, tables[:, s], reserved[s]) for s, i in enumerate(seq_ids) if reserved[s]])
        return self._worth(seq_ids, reserved, [self._draft(i).first(count) for i, count in zip(seq_ids, reserved)])

    def _worth(self, seq_ids: Sequence[int], reserved: Sequence[int], drafts: list[Draft]) -> list[Draft]:
        """What of the drafts is worth its rows, at the newest cost; all of it while none is known."""
        cost = self.cost
        if cost is None or not any(len(draft) for draft in drafts):
            return drafts
        rates = [self._estimator.rates(i, draft.facts) if len(draft) else [] for i, draft in zip(seq_ids, drafts)]
        if any(draft.probs is not None for draft in drafts):
            reach = [0 if draft.probs is None else most for draft, most in zip(drafts, reserved)]
            counts = choose_by_place(rates, reach, cost)
        else:
            counts = choose_drafts([len(draft) for draft in drafts], rates, cost)[2]
        return [draft.first(count) for draft, count in zip(drafts, counts.tolist())]

    def _draft(self, seq_id: int) -> Draft:
        history = self._histories.get(seq_id)
        return EMPTY if history is None or history.draft is None else history.draft

    def _wanted(self, seq_id: int, blocks: IntArray | None = None, most: int | None = None) -> Wanted:
        most = self._most if most is None or self._drafter.eager else most
        history = self._histories[seq_id]
        return Wanted(seq_id, history.tokens, most, blocks, history.start.sampling)

    def _ask(self, wanted: Sequence[Wanted]) -> None:
        """Has the drafter propose for those of the sequences that have no draft yet; what a grammar forbids is cut."""
        asked = [w for w in wanted if self._histories[w.seq_id].draft is None]
        if asked:
            for item, draft in zip(asked, self._drafter.propose(asked)):
                history = self._histories[item.seq_id]
                history.draft = self.grammars.fitting(history.start, history.tokens, draft)

    def sample_rows(self, plan: StepPlan, verification: Verification) -> list[SampleRow]:
        """One row per logits row of the sampled slices; a row behind drafts takes them as part of its history."""
        rows = []
        for seq_id, samples, draft in zip(plan.seq_ids.tolist(), plan.samples.tolist(), verification.drafts):
            if not samples:
                continue
            history = self._histories[seq_id]
            tokens = history.with_draft(draft.ids)
            ends = range(history.length, len(tokens) + 1)
            rows += [SampleRow(history.start, tokens[:end], end) for end in ends]
        return rows

    def judge(self, plan: StepPlan, verification: Verification, sampled: IntArray, started: float) -> Verdict:
        """``sampled``: the target's own token per sampled row. Takes what is accepted over and proposes anew.
        ``started``: when the step's sampling began (``perf_counter``)."""
        verified = np.zeros(len(verification.drafts), dtype=np.int32)
        accepted = np.zeros_like(verified)
        runs, failed, at = [], {}, 0  # many sequences pass here per step, most of them without a draft
        for s, (seq_id, samples) in enumerate(zip(plan.seq_ids.tolist(), plan.samples.tolist())):
            if not samples:
                continue
            draft = verification.drafts[s]
            own = sampled[at : at + len(draft) + 1]
            run = accepted_run(draft.ids, own)
            if len(run) == 0:
                failed[s] = at
            verified[s], accepted[s] = len(draft), max(0, len(run) - 1)
            runs.append(Run(run, at))
            at += len(own)
            self._take_over(seq_id, draft, run)
        taken = perf_counter()
        noted = self._draft_anew(plan)
        report = Speculated(
            verified,
            accepted,
            noted.confidences,
            rows=len(verification.batch.input_ids),
            forward_ms=verification.forward_ms,
            draft_ms=verification.draft_ms + noted.draft_ms,
            sampler_ms=(taken - started) * 1000,
        )
        return Verdict(runs, failed, report)

    def note(self, plan: StepPlan, tokens: IntArray) -> Noted:
        """Takes over what a step without drafts has drawn: ``tokens`` (S,) per slice, -1 where nothing was. Drafts
        anew, unless speculation is paused."""
        seq_ids = plan.seq_ids.tolist()
        for seq_id, token in zip(seq_ids, tokens):
            if token >= 0:
                self._take_over(seq_id, EMPTY, np.array([token], dtype=np.int32))
        return Noted() if self.paused else self._draft_anew(plan)

    def _draft_anew(self, plan: StepPlan) -> Noted:
        started = perf_counter()
        self._ask_eagerly(plan)
        confidences = self._confidences(plan)
        return Noted(confidences, (perf_counter() - started) * 1000)

    def _take_over(self, seq_id: int, draft: Draft, run: IntArray) -> None:
        self._histories[seq_id].append(run)
        self._drafter.extend(seq_id, run)
        if len(draft) and len(run):
            self._estimator.learn(seq_id, draft.facts, len(run) - 1)

    def _ask_eagerly(self, plan: StepPlan) -> None:
        if self._drafter.eager:
            sampled = zip(plan.seq_ids.tolist(), plan.samples.tolist())
            self._ask([self._wanted(seq_id) for seq_id, samples in sampled if samples])

    def _confidences(self, plan: StepPlan) -> dict[int, list[float]]:
        """What the planner may choose by: it looks at all of a draft at once, which drawn ones do not allow."""
        drafts = {i: draft for i in plan.seq_ids.tolist() if len(draft := self._draft(i)) and draft.probs is None}
        return {i: self._estimator.rates(i, draft.facts) for i, draft in drafts.items()}


def last_tokens(plan: StepPlan, verdict: Verdict) -> IntArray:
    """(S,): the last token that each slice emits; -1 where none was asked of it, NOTHING_DRAWN where none was drawn."""
    last = np.full(len(plan.seq_ids), -1, dtype=np.int32)
    for s, run in zip(np.flatnonzero(plan.samples).tolist(), verdict.runs):
        last[s] = run.tokens[-1] if len(run.tokens) else NOTHING_DRAWN
    return last


def accepted_run(drafts: IntArray, own: IntArray) -> IntArray:
    """What is emitted: the target's own tokens ``own`` (k+1,) up to and with the first that is not the draft.

    A row that could not be sampled (-1) ends the run before it, so that the next step meets it first.
    """
    if len(drafts) == 0:
        return own if own[0] >= 0 else own[:0]
    wrong = np.flatnonzero(own[:-1] != drafts)
    end = int(wrong[0]) + 1 if len(wrong) else len(own)
    bad = np.flatnonzero(own[:end] < 0)
    return own[: int(bad[0])] if len(bad) else own[:end]

"""One step on its way through the worker, and what its parts come to in the end: errors, times, a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from headrace.contract.batch import PackedBatch
from headrace.contract.plan import IntArray, SequenceStart, StepPlan
from headrace.contract.result import LogprobArrays, PromptLogprobs, RowError, Speculated, StepTimes

from .device import Ticket
from .grammars import NO_TOKEN, GrammarMasks
from .prompt_scores import ScoreSlice
from .speculator import Noted, Verdict, Verification

NO_FINITE_LOGIT = RowError("the model's output holds no finite logit (weights or prompt beyond its range)")


@dataclass(slots=True)
class StepHandle:
    """One step on its way. Device-side fields are written by the device thread, read after the futures resolve."""

    plan: StepPlan
    batch: PackedBatch
    scores: list[ScoreSlice]
    greedy: bool  # every sampled row is plainly greedy: the forward draws, and there are no logits
    plain: bool = True  # nothing about it was a guess: it runs as without speculation
    forward: Ticket | None = None
    sample: Ticket | None = None
    drawn: Tensor | None = None  # logits (R, V), or with ``greedy`` ids (R,)
    prompt_logprobs: dict[int, PromptLogprobs] = field(default_factory=dict)
    masks: GrammarMasks = field(default_factory=GrammarMasks)
    starts: Sequence[SequenceStart] = ()
    verification: Verification | None = None
    verdict: Verdict | None = None
    noted: Noted = field(default_factory=Noted)


def no_drafts(handle: StepHandle) -> Speculated:
    """The report of a step that verified nothing: what it took is what drafts are measured against."""
    none, times, noted = np.zeros(len(handle.plan.seq_ids), dtype=np.int32), times_of(handle), handle.noted
    if times is None:
        return Speculated(none, none, noted.confidences)
    return Speculated(
        none,
        none,
        noted.confidences,
        rows=len(handle.batch.input_ids),
        draft_ms=noted.draft_ms,
        forward_ms=(times.forward_end_ns - times.forward_start_ns) / 1e6,
        sampler_ms=(times.sample_end_ns - times.sample_start_ns) / 1e6 - noted.draft_ms,
        plain=True,
    )


def slice_errors(handle: StepHandle, failed: Mapping[int, int]) -> dict[int, RowError]:
    """Sequences of the slices that could not be sampled, and why. ``failed``: the first row of each such slice."""
    errors = dict(handle.masks.errors)
    for s, row in failed.items():
        masked = row in handle.masks.words
        errors.setdefault(int(handle.plan.seq_ids[s]), NO_TOKEN if masked else NO_FINITE_LOGIT)
    return errors


def times_of(handle: StepHandle) -> StepTimes | None:
    forward, sample = handle.forward, handle.sample
    if forward is None or sample is None:
        return None
    return StepTimes(forward.started_ns, forward.ended_ns, sample.started_ns, sample.ended_ns)


def row_errors(handle: StepHandle, sampled: NDArray[np.int64], tokens: IntArray) -> dict[int, RowError]:
    """Sequences whose row gave no token that stands, and why."""
    errors = dict(handle.masks.errors)
    for row in np.flatnonzero(tokens < 0).tolist():
        masked = row in handle.masks.words
        errors.setdefault(int(handle.plan.seq_ids[sampled[row]]), NO_TOKEN if masked else NO_FINITE_LOGIT)
    return errors


def keep_rows(logprobs: LogprobArrays | None, good: np.ndarray) -> LogprobArrays | None:
    if logprobs is None or good.all():
        return logprobs
    return logprobs.take(np.flatnonzero(good))

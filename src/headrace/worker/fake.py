"""FakeWorker: the worker port without a model, for driving the true engine in tests and simulations. No torch.

The next token is a function of the sequence's tokens so far, so any disturbance of a history shows in the output.
``guess(tokens, most)`` proposes drafts where the plan reserves rows.
Faults are scripted: ``fail_steps`` names steps whose collect raises.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from headrace.contract.errors import WorkerError
from headrace.contract.plan import IntArray, SequenceStart, StepPlan
from headrace.contract.result import Speculated, StepResult


def rolling_token(tokens: Sequence[int], vocab_size: int = 1000) -> int:
    """A next token that depends on every token before it, in order."""
    value = 17
    for token in tokens:
        value = (value * 1103515245 + token + 12345) % 2147483648
    return value % vocab_size


@dataclass
class FakeStep:
    """A launched step and what it has drawn."""

    plan: StepPlan
    tokens: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=lambda: [0])
    verified: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)


@dataclass
class FakeWorker:
    """``next_token(tokens)`` stands for the model; rows are kept like a real worker keeps them."""

    next_token: Callable[[Sequence[int]], int] = rolling_token
    fail_steps: set[int] = field(default_factory=set)
    rows: dict[int, list[int]] = field(default_factory=dict)
    guess: Callable[[Sequence[int], int], list[int]] | None = None
    num_forwards: int = 0
    num_tokens: int = 0
    closed: bool = False

    def launch_forward(self, plan: StepPlan, starts: Sequence[SequenceStart]) -> FakeStep:
        for seq_id in plan.dropped.tolist():
            self.rows.pop(seq_id, None)
        offsets = plan.fresh_offsets
        for i, slice_index in enumerate(plan.fresh_slices.tolist()):
            tokens = plan.fresh_tokens[offsets[i] : offsets[i + 1]].tolist()
            self.rows[int(plan.seq_ids[slice_index])] = tokens
        unknown = set(plan.seq_ids.tolist()) - set(self.rows)
        if unknown:
            raise WorkerError(f"sequences {sorted(unknown)} were never introduced")
        self.num_forwards += 1
        self.num_tokens += plan.total_tokens
        return FakeStep(plan)

    def launch_sample(self, handle: FakeStep) -> None:
        """Draws now, as a device would: rows may be dropped by a later plan before this step is collected."""
        plan = handle.plan
        for seq_id, samples, most in zip(plan.seq_ids.tolist(), plan.samples.tolist(), plan.num_drafts.tolist()):
            drafts = self.guess(self.rows[seq_id], most) if self.guess and samples else []
            emitted = self._draw(self.rows[seq_id], drafts) if samples else []
            handle.tokens += emitted
            handle.offsets.append(len(handle.tokens))
            handle.verified.append(len(drafts))
            handle.accepted.append(max(0, len(emitted) - 1))

    def _draw(self, row: list[int], drafts: Sequence[int]) -> list[int]:
        """The next token and, as long as the drafts say the same, those after it."""
        before = len(row)
        for draft in [*drafts, None]:
            row.append(self.next_token(row))
            if row[-1] != draft:
                break
        return row[before:]

    def collect(self, handle: FakeStep, timeout_s: float) -> StepResult:
        plan = handle.plan
        if plan.step in self.fail_steps:
            raise WorkerError(f"scripted failure of step {plan.step}")
        return StepResult(
            step=plan.step,
            num_valid=_valid(handle),
            offsets=np.array(handle.offsets, dtype=np.int32),
            tokens=np.array(handle.tokens, dtype=np.int32),
            speculated=Speculated(np.array(handle.verified), np.array(handle.accepted), {}) if self.guess else None,
        )

    def close(self) -> None:
        self.closed = True


def _valid(handle: FakeStep) -> IntArray:
    plan = handle.plan
    rejected = np.where(plan.samples > 0, plan.num_drafts - np.array(handle.accepted, dtype=np.int32), 0)
    valid: IntArray = (plan.num_scheduled - rejected).astype(np.int32)
    return valid

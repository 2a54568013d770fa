"""FakeWorker: the worker port without a model, for driving the true engine in tests and simulations. No torch.

The next token is a function of the sequence's tokens so far, so any disturbance of a history shows in the output.
Faults are scripted: ``fail_steps`` names steps whose collect raises.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

from headrace.contract.errors import WorkerError
from headrace.contract.plan import SequenceStart, StepPlan
from headrace.contract.result import StepResult


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


@dataclass
class FakeWorker:
    """``next_token(tokens)`` stands for the model; rows are kept like a real worker keeps them."""

    next_token: Callable[[Sequence[int]], int] = rolling_token
    fail_steps: set[int] = field(default_factory=set)
    rows: dict[int, list[int]] = field(default_factory=dict)
    num_forwards: int = 0
    num_tokens: int = 0
    moved: list[tuple[int, int]] = field(default_factory=list)
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
        for seq_id, samples in zip(handle.plan.seq_ids.tolist(), handle.plan.samples.tolist()):
            if samples:
                token = self.next_token(self.rows[seq_id])
                self.rows[seq_id].append(token)
                handle.tokens.append(token)
            handle.offsets.append(len(handle.tokens))

    def collect(self, handle: FakeStep, timeout_s: float) -> StepResult:
        plan = handle.plan
        if plan.step in self.fail_steps:
            raise WorkerError(f"scripted failure of step {plan.step}")
        return StepResult(
            step=plan.step,
            num_valid=np.array(plan.num_scheduled, dtype=np.int32),
            offsets=np.array(handle.offsets, dtype=np.int32),
            tokens=np.array(handle.tokens, dtype=np.int32),
        )

    def read_blocks(self, blocks: Sequence[int]) -> list[int]:
        """There is no KV here: a block's number stands for what is in it."""
        return list(blocks)

    def write_blocks(self, blocks: Sequence[int], content: list[int], rows: Sequence[int]) -> Future[None]:
        """``moved`` remembers (from, to)."""
        self.moved += [(content[row], block) for row, block in zip(rows, blocks)]
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def close(self) -> None:
        self.closed = True

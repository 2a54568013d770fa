"""The worker: packs on the host, computes on the device thread, one step after another.

``launch_forward`` may be called while the step before is still computing; ``launch_sample`` only once that step has
been collected, because penalties and end rules look at its tokens. All failures surface in ``collect``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.contract.batch import PackedBatch
from headrace.contract.errors import WorkerError
from headrace.contract.plan import IntArray, SequenceStart, StepPlan
from headrace.contract.result import LogprobArrays, PromptLogprobs, StepResult

from .correct import fill_unknown_ids
from .device import DeviceThread
from .grammars import NO_TOKEN, GrammarMasks, Grammars
from .packer import Packer
from .prompt_scores import ScoreSlice, plan_scores, score
from .runner import Runner
from .sampler import SamplePlan, SampleRow, draw, plan_sampling

NO_FINITE_LOGIT = "the model's output holds no finite logit (weights or prompt beyond its range)"


@dataclass(slots=True)
class StepHandle:
    """One step on its way. Device-side fields are written by the device thread, read after the futures resolve."""

    plan: StepPlan
    batch: PackedBatch
    scores: list[ScoreSlice]
    forward: Future[Any] | None = None
    sample: Future[Any] | None = None
    logits: Tensor | None = None
    prompt_logprobs: dict[int, PromptLogprobs] = field(default_factory=dict)
    masks: GrammarMasks = field(default_factory=GrammarMasks)


class Worker:
    """A WorkerPort over a model, its KV tensors and one device thread."""

    def __init__(self, runner: Runner, block_size: int) -> None:
        self._runner = runner
        self._packer = Packer(block_size, len(runner.model.kv_layout.groups))
        self._grammars = Grammars(runner.model.vocab_size)
        self._device = DeviceThread()
        self._last_sampled = torch.empty(0, dtype=torch.int32)  # device side: the previous step's token per slice

    def launch_forward(self, plan: StepPlan, starts: Sequence[SequenceStart]) -> StepHandle:
        batch = self._packer.pack(plan, starts)
        self._grammars.take(plan.dropped.tolist(), starts)
        handle = StepHandle(plan, batch, plan_scores(plan, self._packer, batch.query_start_loc))
        handle.forward = self._device.launch(lambda: self._forward(handle))
        return handle

    def launch_sample(self, handle: StepHandle) -> None:
        rows = self._sample_rows(handle)
        handle.masks = self._grammars.masks(rows)
        plan = plan_sampling(rows, handle.masks.apply if handle.masks.words else None) if rows else None
        handle.sample = self._device.launch(lambda: self._sample(handle, plan))

    def _sample_rows(self, handle: StepHandle) -> list[SampleRow]:
        sampled = np.flatnonzero(handle.batch.discard == 0)
        seq_ids, positions = handle.plan.seq_ids, handle.batch.seq_lens
        return [
            SampleRow(self._packer.start(int(seq_ids[i])), self._packer.tokens(int(seq_ids[i])), int(positions[i]))
            for i in sampled
        ]

    def collect(self, handle: StepHandle, timeout_s: float) -> StepResult:
        assert handle.sample is not None, "collect before launch_sample"
        try:
            tokens, logprobs = handle.sample.result(min(timeout_s, threading.TIMEOUT_MAX))  # more overflows
        except TimeoutError as error:
            raise WorkerError(f"step {handle.plan.step} did not finish within {timeout_s:g} s") from error
        return self._result(handle, tokens, logprobs)

    def launch(self, work: Callable[[], Any]) -> Future[Any]:
        """Queues work of others that touches the KV (a store's copies), in order with the steps."""
        return self._device.launch(work)

    def close(self) -> None:
        self._device.close()

    # -- device thread ------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def _forward(self, handle: StepHandle) -> None:
        self._runner.clone_blocks(handle.plan.clone_blocks)
        if len(handle.plan.seq_ids) == 0:
            return  # a step in company of other ranks; a dense model has nothing to exchange in it
        context = self._runner.context(handle.batch)
        prev = torch.from_numpy(handle.batch.prev_positions)
        fill_unknown_ids(context.input_ids, context.query_start_loc, prev, self._last_sampled)
        rows = torch.from_numpy(handle.batch.logits_indices[handle.batch.discard == 0])
        hidden, handle.logits = self._runner.forward(handle.batch, context, rows)
        handle.prompt_logprobs = score(self._runner, hidden, handle.scores)

    @torch.inference_mode()
    def _sample(self, handle: StepHandle, plan: SamplePlan | None) -> tuple[IntArray, LogprobArrays | None]:
        assert handle.forward is not None
        handle.forward.result(0)  # raises here what the forward raised
        last = torch.full((len(handle.plan.seq_ids),), -1, dtype=torch.int32)
        ids, logprobs = torch.empty(0, dtype=torch.int32), None
        if plan is not None:
            assert handle.logits is not None
            ids, logprobs = draw(self._runner.ops, handle.logits, plan)
            last[torch.from_numpy(handle.batch.discard == 0)] = ids
        handle.logits = None
        self._last_sampled = last
        return ids.numpy(), logprobs

    # -- host again ---------------------------------------------------------------------------------------------

    def _result(self, handle: StepHandle, tokens: IntArray, logprobs: LogprobArrays | None) -> StepResult:
        plan = handle.plan
        sampled = np.flatnonzero(handle.batch.discard == 0)
        counts = np.zeros(len(plan.seq_ids), dtype=np.int32)
        errors = _row_errors(handle, sampled, tokens)
        good = np.array([int(plan.seq_ids[i]) not in errors for i in sampled], dtype=bool)
        counts[sampled] = good
        for i, token in zip(sampled[good], tokens[good]):
            self._packer.append(int(plan.seq_ids[i]), np.array([token], dtype=np.int32))
        return StepResult(
            step=plan.step,
            num_valid=np.array(plan.num_scheduled, dtype=np.int32),
            offsets=np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
            tokens=tokens[good],
            logprobs=_keep_rows(logprobs, good),
            prompt_logprobs=handle.prompt_logprobs,
            errors=errors,
        )


def _row_errors(handle: StepHandle, sampled: NDArray[np.int64], tokens: IntArray) -> dict[int, str]:
    """Sequences whose row gave no token that stands, and why."""
    errors = dict(handle.masks.errors)
    for row, (i, token) in enumerate(zip(sampled, tokens)):
        if token < 0:
            masked = row in handle.masks.words
            errors.setdefault(int(handle.plan.seq_ids[i]), NO_TOKEN if masked else NO_FINITE_LOGIT)
    return errors


def _keep_rows(logprobs: LogprobArrays | None, good: np.ndarray) -> LogprobArrays | None:
    if logprobs is None or good.all():
        return logprobs
    return LogprobArrays(logprobs.chosen[good], logprobs.rank[good], logprobs.top_ids[good], logprobs.top_values[good])

"""The worker: packs on the host, computes on the device thread, one step after another.

``launch_forward`` may be called while the step before is still computing; ``launch_sample`` only once that step has
been collected, because penalties and end rules look at its tokens. All failures surface in ``collect``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace._core import NOTHING_DRAWN, fill_unknown_ids
from headrace.contract.batch import PackedBatch
from headrace.contract.errors import GroupBroken, WorkerError
from headrace.contract.plan import IntArray, SequenceStart, StepPlan
from headrace.contract.result import LogprobArrays, StepResult
from headrace.models.context import ForwardContext, SkipsRows
from headrace.obs.launch_guard import LaunchGuard

from .device import DeviceThread
from .grammars import Grammars
from .packer import Packer
from .pending_reads import no_pending_reads
from .pictures import Pictures
from .prompt_scores import moved, plan_scores, score
from .rejection import drafted_rows, settle
from .runner import Runner
from .sampler import SamplePlan, SampleRow, draw, plan_sampling
from .speculator import Run, Speculator, Verdict, last_tokens
from .step import StepHandle, keep_rows, no_drafts, row_errors, slice_errors, times_of

CONTENT_TIMEOUT_S = 30.0  # for blocks that another worker copies between two of its steps


class Worker:
    """A WorkerPort over a model, its KV tensors and one device thread."""

    def __init__(
        self,
        runner: Runner,
        block_size: int,
        *,
        guard: LaunchGuard | None = None,
        enter: Callable[[], None] | None = None,
        speculator: Speculator | None = None,
    ) -> None:
        self._guard = guard or LaunchGuard()
        self._runner = runner
        self._speculator = speculator
        self._packer = Packer(block_size, len(runner.model.kv_layout.groups))
        self._pictures = Pictures(runner.model)
        self._skips = isinstance(runner.model, SkipsRows)
        self._grammars = Grammars(runner.model.vocab_size)  # the host's; a speculator has its own
        self._device = DeviceThread(guard=self._guard, enter=enter)
        self._last_sampled: IntArray = np.empty(0, np.int32)  # device side: the previous step's token per slice
        self._drafts_before = False  # the step launched last may have brought more than one token of a sequence

    def launch_forward(self, plan: StepPlan, starts: Sequence[SequenceStart]) -> StepHandle:
        with self._for_all(self._leave_behind), no_pending_reads(self._guard):
            return self._launch_forward(plan, starts)

    @contextmanager
    def _for_all(self, leave: Callable[[], None]) -> Iterator[None]:
        """Other ranks may run the step too, and wait in it for this one. What fails in here then ends the group: better
        than ranks that wait in vain or are out of step. Raises GroupBroken."""
        try:
            yield
        except GroupBroken:
            raise
        except Exception as error:
            if not self._runner.shared:
                raise
            leave()
            raise GroupBroken(f"failed in a step that other ranks share: {error}") from error

    def _leave_behind(self) -> None:
        """Leaves the group behind the steps in flight: the others may still need this rank in them."""
        try:
            self._device.launch(self._runner.leave)
        except WorkerError:  # it is stuck, or has ended
            self._runner.leave()

    def _launch_forward(self, plan: StepPlan, starts: Sequence[SequenceStart]) -> StepHandle:
        batch = self._packer.pack(plan, starts)
        if self._speculator is None:
            self._grammars.take(plan.dropped.tolist(), starts)
        greedy = self._packer.all_plain_greedy(plan.seq_ids[batch.discard == 0].tolist())
        scores = plan_scores(plan, self._packer, batch.query_start_loc)
        handle = StepHandle(plan, batch, scores, greedy, self._is_plain(plan), starts=starts)
        handle.forward = self._device.launch(lambda: self._forward(handle))
        return handle

    def _is_plain(self, plan: StepPlan) -> bool:
        """Without drafts now and in the step before, positions are as planned, and a paused speculation costs next to
        nothing. Grammars are the device thread's where there is a speculator."""
        if self._speculator is None:
            return True
        before, self._drafts_before = self._drafts_before, bool(plan.num_drafts.any())
        if before or self._drafts_before:
            return False
        return all(self._packer.start(seq_id).grammar is None for seq_id in plan.seq_ids.tolist())

    def launch_sample(self, handle: StepHandle) -> None:
        with no_pending_reads(self._guard):
            self._launch_sample(handle)

    def _launch_sample(self, handle: StepHandle) -> None:
        if not handle.plain:
            handle.sample = self._device.launch(lambda: self._verify(handle))
            return
        rows = [] if handle.greedy else self._sample_rows(handle)
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

    def read_blocks(self, blocks: Sequence[int]) -> Future[list[Tensor]]:
        """Copies of whole KV blocks as they are after every step launched so far."""
        wanted = list(blocks)
        return self._device.launch(lambda: self._runner.read_blocks(wanted))

    def write_blocks(self, blocks: Sequence[int], content: Future[list[Tensor]], rows: Sequence[int]) -> Future[Any]:
        """Fills blocks from another worker's ``read_blocks``, before any step launched from now on."""
        targets, sources = list(blocks), list(rows)
        return self._device.launch(
            lambda: self._runner.write_blocks(targets, content.result(CONTENT_TIMEOUT_S), sources)
        )

    def launch(self, work: Callable[[], Any]) -> Future[Any]:
        """Queues work of others that touches the KV (a store's copies), in order with the steps."""
        return self._device.launch(work)

    def close(self) -> None:
        try:
            self._device.close()
        finally:
            self._runner.close()

    # -- device thread ------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def _forward(self, handle: StepHandle) -> None:
        with self._for_all(self._runner.leave):
            self._compute(handle)

    def _compute(self, handle: StepHandle) -> None:
        """All of a step but its draws."""
        self._runner.clone_blocks(handle.plan.clone_blocks)
        self._pictures.take(handle.plan, handle.starts)
        if self._speculator is not None:
            self._speculator.take(handle.plan, handle.starts)
        if len(handle.plan.seq_ids) == 0:
            self._runner.company()
            return
        if self._speculator is not None and not handle.plain:
            self._forward_drafts(handle, self._speculator)
            return
        context = self._context(handle, handle.batch)
        batch = handle.batch  # the context reads the same memory
        fill_unknown_ids(batch.input_ids, batch.query_start_loc, batch.prev_positions, self._last_sampled)
        rows = torch.from_numpy(handle.batch.logits_indices[handle.batch.discard == 0])
        hidden, handle.drawn = self._runner.forward(handle.batch, context, rows, handle.greedy)
        handle.prompt_logprobs = score(self._runner, hidden, handle.scores)

    def _context(self, handle: StepHandle, batch: PackedBatch) -> ForwardContext:
        context = self._runner.context(batch)
        if self._skips:
            known = np.maximum(handle.plan.num_tokens, batch.seq_lens).astype(np.int32)
            context = replace(context, known_lens=torch.from_numpy(known))
        return self._pictures.placed(context, handle.plan.seq_ids.tolist(), batch)

    def _forward_drafts(self, handle: StepHandle, speculator: Speculator) -> None:
        """The forward of what has really been accepted, and of the drafts that follow it."""
        handle.verification = verification = speculator.revise(handle.plan, handle.batch)
        started = perf_counter()
        batch = verification.batch
        rows = torch.from_numpy(batch.logits_indices)
        hidden, handle.drawn = self._runner.forward(batch, self._context(handle, batch), rows, handle.greedy)
        verification.forward_ms = (perf_counter() - started) * 1000
        scores = moved(handle.scores, handle.batch.query_start_loc, batch.query_start_loc)
        handle.prompt_logprobs = score(self._runner, hidden, scores)

    @torch.inference_mode()
    def _verify(self, handle: StepHandle) -> tuple[IntArray, LogprobArrays | None]:
        """Draws the target's token in every row, and keeps those that plain decoding would have drawn."""
        assert handle.forward is not None
        assert self._speculator is not None
        handle.forward.result(0)
        started = perf_counter()
        ids, logprobs = np.empty(0, dtype=np.int32), None
        if (verification := handle.verification) is None:
            return ids, logprobs
        if handle.greedy and handle.drawn is not None:
            ids = handle.drawn.numpy().copy()  # the next step may overwrite it
        elif rows := self._speculator.sample_rows(handle.plan, verification):
            assert handle.drawn is not None
            handle.masks = masks = self._speculator.grammars.masks(rows)
            drafted = drafted_rows([verification.drafts[i] for i in np.flatnonzero(handle.plan.samples)])
            plan = plan_sampling(
                rows, masks.apply if masks.words else None, partial(settle, slices=drafted) if drafted else None
            )
            drawn, logprobs = draw(self._runner.ops, handle.drawn, plan)
            ids = drawn.numpy()
        handle.drawn = None
        handle.verdict = self._speculator.judge(handle.plan, verification, ids, started)
        self._last_sampled = last_tokens(handle.plan, handle.verdict)
        return ids, logprobs

    @torch.inference_mode()
    def _sample(self, handle: StepHandle, plan: SamplePlan | None) -> tuple[IntArray, LogprobArrays | None]:
        assert handle.forward is not None
        handle.forward.result(0)  # raises here what the forward raised
        last = np.full(len(handle.plan.seq_ids), -1, np.int32)
        ids, logprobs = np.empty(0, np.int32), None
        if handle.drawn is not None and (handle.greedy or plan is not None):
            if plan is None:
                ids = handle.drawn.numpy().copy()  # the next step may overwrite it
            else:
                drawn, logprobs = draw(self._runner.ops, handle.drawn, plan)
                ids = drawn.numpy()
            last[handle.batch.discard == 0] = np.where(ids < 0, NOTHING_DRAWN, ids)
        handle.drawn = None
        self._last_sampled = last
        if self._speculator is not None:
            handle.noted = self._speculator.note(handle.plan, last)
        return ids, logprobs

    # -- host again ---------------------------------------------------------------------------------------------

    def _result(self, handle: StepHandle, tokens: IntArray, logprobs: LogprobArrays | None) -> StepResult:
        plan = handle.plan
        if handle.verdict is not None:
            return self._verified(handle, handle.verdict, logprobs)
        sampled = np.flatnonzero(handle.batch.discard == 0)
        counts = np.zeros(len(plan.seq_ids), dtype=np.int32)
        errors, good = row_errors(handle, sampled, tokens), np.ones(len(sampled), dtype=bool)
        if errors:
            good = ~np.isin(plan.seq_ids[sampled], list(errors))
        counts[sampled] = good
        self._packer.append(plan.seq_ids[sampled[good]], tokens[good])
        if self._guard.on:
            handle.batch.poison()  # the step is over; whoever kept a view of its inputs is to notice
        return StepResult(
            step=plan.step,
            num_valid=np.array(plan.num_scheduled, dtype=np.int32),
            offsets=np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
            tokens=tokens[good],
            logprobs=keep_rows(logprobs, good),
            prompt_logprobs=handle.prompt_logprobs,
            errors=errors,
            times=times_of(handle),
            speculated=None if self._speculator is None else no_drafts(handle),
        )

    def _verified(self, handle: StepHandle, verdict: Verdict, logprobs: LogprobArrays | None) -> StepResult:
        """What a step with drafts emits: a run of tokens per sampled slice."""
        plan, counts = handle.plan, np.zeros(len(handle.plan.seq_ids), dtype=np.int32)
        errors = slice_errors(handle, verdict.failed)
        sampled = np.flatnonzero(plan.samples)
        runs = [Run.empty() if int(plan.seq_ids[i]) in errors else run for i, run in zip(sampled, verdict.runs)]
        counts[sampled] = [len(run.tokens) for run in runs]
        tokens = np.concatenate([Run.empty().tokens, *(run.tokens for run in runs)])
        self._packer.append(np.repeat(plan.seq_ids[sampled], counts[sampled]), tokens)
        if self._guard.on:
            handle.batch.poison()
        rejected = np.where(plan.samples > 0, plan.num_drafts - verdict.report.accepted, 0)
        return StepResult(
            step=plan.step,
            num_valid=(plan.num_scheduled - rejected).astype(np.int32),
            offsets=np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
            tokens=tokens,
            logprobs=None if logprobs is None else logprobs.take(np.concatenate([run.rows for run in runs])),
            prompt_logprobs=handle.prompt_logprobs,
            errors=errors,
            times=times_of(handle),
            speculated=verdict.report,
        )

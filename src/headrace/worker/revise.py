"""Device-side correction under speculation: a packed batch is laid out again for what has really been accepted.

The host packs a step while the one before is in flight: it assumes that every draft stands and reserves rows for drafts
it has not seen. Here the truth is known. Slices move back to their true positions, get their tokens and drafts, and
rows nobody needs are left out; slots follow from the block tables, whose blocks reach at least as far.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from headrace.contract.batch import PackedBatch
from headrace.contract.plan import IntArray, StepPlan

from .history import History


@dataclass(frozen=True, slots=True)
class Rows:
    """What one slice computes: input ids from ``position`` on, of which the last ``num_drafts`` are drafts."""

    ids: IntArray
    position: int
    num_drafts: int
    samples: bool = True


def slice_rows(
    plan: StepPlan, batch: PackedBatch, histories: Mapping[int, History], drafts: Sequence[IntArray]
) -> list[Rows]:
    """Rows per slice. ``drafts``: what each slice verifies, at most what the plan has reserved for it."""
    starts = batch.query_start_loc.tolist()
    rows = []
    per_slice = zip(plan.seq_ids.tolist(), plan.num_scheduled.tolist(), plan.num_drafts.tolist(), plan.samples.tolist())
    for s, (seq_id, q, reserved, samples) in enumerate(per_slice):
        if not samples:  # a part of a prefill: nothing about it was a guess
            rows.append(Rows(batch.input_ids[starts[s] : starts[s + 1]], int(plan.num_computed[s]), 0, False))
            continue
        history = histories[seq_id]
        first = history.length - (q - reserved)
        rows.append(Rows(history.with_draft(drafts[s])[first:].copy(), first, len(drafts[s])))
    return rows


def lay_out(batch: PackedBatch, rows: Sequence[Rows], block_size: int) -> PackedBatch:
    """The batch with these rows, logits for the sampled slices only.

    Raises ValueError where a row has no token or no block: never feed that to a model.
    """
    lengths = np.array([len(r.ids) for r in rows], dtype=np.int32)
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    firsts = np.array([r.position for r in rows], dtype=np.int32)
    ids = np.concatenate([r.ids for r in rows]).astype(np.int32)
    if (ids < 0).any():
        raise ValueError("input_ids: a token that no step has sampled")
    logits = _logits_rows(rows, starts)
    if _as_planned(batch, starts, firsts):
        return replace(batch, input_ids=ids, logits_indices=logits)
    index = np.repeat(np.arange(len(rows), dtype=np.int32), lengths)
    positions = (np.arange(starts[-1], dtype=np.int32) - starts[index] + firsts[index]).astype(np.int32)
    blocks = batch.block_tables[:, index, positions // block_size]
    if (blocks <= 0).any():
        raise ValueError("slots: a row that no block is held for")
    return PackedBatch(
        input_ids=ids,
        request_index=index,
        positions=positions,
        query_start_loc=starts,
        seq_lens=firsts + lengths,
        logits_indices=logits,
        discard=batch.discard,
        prev_positions=batch.prev_positions,
        block_tables=batch.block_tables,
        slots=np.ascontiguousarray(blocks * block_size + positions % block_size, dtype=np.int32),
    )


def _as_planned(batch: PackedBatch, starts: IntArray, firsts: IntArray) -> bool:
    """Whether every slice is as long as the host thought, and where it thought: then only ids were unknown."""
    same = np.array_equal(batch.query_start_loc, starts)
    return same and np.array_equal(batch.positions[starts[:-1]], firsts)


def _logits_rows(rows: Sequence[Rows], starts: IntArray) -> IntArray:
    """The last row of each sampled slice and, before it, one per draft."""
    ends = starts[1:].tolist()
    runs = [np.arange(end - 1 - r.num_drafts, end, dtype=np.int32) for r, end in zip(rows, ends) if r.samples]
    return np.concatenate([np.empty(0, dtype=np.int32), *runs])

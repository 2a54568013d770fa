"""The packers of several context-parallel ranks, on the plans of a prompt engine: every position once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace._core import InvalidField, RowTable, Scheduler
from headrace.contract.batch import PackedBatch
from headrace.contract.plan import Role, StepKind
from headrace.worker.packer import Packer

GROUPS = [(0, 0), (1, 6)]  # full attention, and a window of 6


def engine(cp_size: int) -> Scheduler:
    core = Scheduler(
        num_blocks=65, block_size=4, groups=GROUPS, token_budget=24, role=int(Role.NORMAL), cp_size=cp_size
    )
    for seq_id, length in enumerate((31, 9, 1, 18)):
        core.add(seq_id, np.arange(100 * seq_id, 100 * seq_id + length, dtype=np.int32), max_tokens=3)
    return core


def finish(core: Scheduler, plan: Any) -> None:
    """The device's answer: 7 wherever a slice samples."""
    offsets = np.concatenate([[0], np.cumsum(plan.samples)]).astype(np.int32)
    core.commit(plan.step, plan.num_scheduled, offsets, np.full(offsets[-1], 7, np.int32))


def check_together(parts: list[PackedBatch], whole: PackedBatch) -> None:
    """Ranks' rows, laid one after another and taken by gather_index, are the step; each slot is one rank's."""
    index = parts[0].gather_index
    assert len(set(index.tolist())) == len(index) == len(whole.positions)
    for name in ("input_ids", "positions", "request_index"):
        assert np.concatenate([getattr(part, name) for part in parts])[index].tolist() == getattr(whole, name).tolist()
    slots = np.stack([part.slots for part in parts])
    assert ((slots >= 0).sum(0) == 1).all()
    assert slots.max(0).tolist() == whole.slots.tolist()
    sampled = np.concatenate([part.request_index[part.logits_indices] for part in parts])
    assert sorted(sampled.tolist()) == list(range(len(whole.seq_lens)))
    for part in parts:
        assert part.gather_index.tolist() == index.tolist()
        assert len(part.positions) == len(parts[0].positions)
        for name in ("seq_lens", "block_tables", "discard", "prev_positions"):
            assert getattr(part, name).tolist() == getattr(whole, name).tolist(), name


def check_alike(part: PackedBatch, whole: PackedBatch) -> None:
    for name in whole.__slots__:
        assert getattr(part, name).tolist() == getattr(whole, name).tolist(), name


@pytest.mark.parametrize("cp_size", [2, 3])
def test_ranks_share_prompt_steps_and_pack_decode_steps_alike(cp_size: int) -> None:
    core, alone = engine(cp_size), Packer(4, len(GROUPS))
    ranks = [Packer(4, len(GROUPS), cp_size, rank) for rank in range(cp_size)]
    seen: list[int] = []
    while core.num_unfinished:
        plan = core.plan(StepKind.PREFILL)
        if not len(plan.seq_ids):
            plan = core.plan(StepKind.DECODE)
        parts, whole = [rank.pack(plan, []) for rank in ranks], alone.pack(plan, [])
        if plan.kind == StepKind.PREFILL:
            check_together(parts, whole)
        else:
            for part in parts:
                check_alike(part, whole)
        finish(core, plan)
        for packer in (alone, *ranks):
            ends = plan.seq_ids[np.asarray(plan.samples) == 1]
            packer.append(ends, np.full(len(ends), 7, np.int32))
        seen.append(plan.kind)
    assert set(seen) == {StepKind.PREFILL, StepKind.DECODE}


def test_what_is_no_rank_is_refused() -> None:
    for name, size, rank in (("cp_size", 0, 0), ("cp_rank", 2, 2), ("cp_rank", 2, -1)):
        with pytest.raises(InvalidField, match=rf"^{name}: "):
            RowTable(4, 1, cp_size=size, cp_rank=rank)


def test_ranks_take_no_mixed_steps() -> None:
    core = Scheduler(num_blocks=9, block_size=4)
    core.add(0, np.arange(5, dtype=np.int32))
    with pytest.raises(InvalidField, match=r"^kind: "):
        Packer(4, 1, 2, 0).pack(core.plan(), [])

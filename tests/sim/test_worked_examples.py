"""The worked examples of the design, through the real core, with exactly its numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from core_device import CoreDevice, ids

from headrace._core import BlockPool, Ledger, RowTable, make_node
from headrace.contract.batch import PackedBatch


def test_v_e1_a_budgets() -> None:
    """A decodes, B is in the middle of its prompt, C waits; token and input budget 8."""
    device = CoreDevice(token_budget=8, input_budget=8, prefix_caching=False)
    a, b, c, filler = range(4)
    device.add(a, range(100, 109))
    assert device.step() == {a: 8}
    device.add(filler, range(200, 203), max_tokens=1)
    device.add(b, range(300, 310))
    assert device.step() == {a: 1, filler: 3, b: 4}  # the filler ends here
    device.add(c, range(400, 405))
    before = {seq_id: device.counts(seq_id) for seq_id in (a, b, c)}
    assert [(x["num_tokens"], x["num_computed"]) for x in before.values()] == [(10, 9), (10, 4), (5, 0)]
    assert device.core.running_ids() == [a, b]

    assert device.plan() == {a: 1, b: 6, c: 1}
    assert [device.counts(x)["num_computed"] for x in (a, b, c)] == [10, 10, 1]
    assert device.plan_seen.token_budget_left == 0
    result = device.commit()
    assert np.diff(result.offsets).tolist() == [1, 1, 0]  # C emits nothing
    for seq_id in (a, b):
        assert device.counts(seq_id)["num_tokens"] == 11
        assert device.counts(seq_id)["num_computed"] == 10


def test_v_e1_b_verification() -> None:
    """Three drafts, one accepted, one token sampled after it."""
    device = CoreDevice()
    device.add(0, 10)
    device.step()
    assert device.counts(0)["num_tokens"] == 11
    assert device.counts(0)["num_computed"] == 10
    device.core.set_drafts(0, [7, 8, 9])
    assert device.plan() == {0: 4}  # the last token and the drafts
    assert device.plan_seen.num_drafts.tolist() == [3]
    assert device.counts(0)["num_computed"] == 14
    device.commit(emits={0: [7, 42]})
    assert device.counts(0)["num_computed"] == 12
    assert device.counts(0)["num_tokens"] == 13


def test_v_e1_c_two_budgets() -> None:
    """Scheduled tokens are charged once to the token budget, and with the room for drafting to the input budget."""
    left = []
    for prompts in ([range(4)], [range(4), range(10, 14)]):
        device = CoreDevice(token_budget=8, input_budget=12, draft_slots=2)
        for seq_id, prompt in enumerate(prompts):
            device.add(seq_id, prompt)
        assert device.plan() == dict.fromkeys(range(len(prompts)), 4)
        left.append((device.plan_seen.token_budget_left, device.plan_seen.input_budget_left))
    assert left == [(4, 6), (0, 0)]


def test_v_e2_hit() -> None:
    """A prompt of 32 with both its blocks cached: one token must be computed, so a whole block is."""
    device = CoreDevice(block_size=16)
    device.add(0, 32, max_tokens=1)
    assert device.step() == {0: 32}
    device.add(1, 32, max_tokens=1)
    assert device.plan() == {1: 16}
    assert device.plan_seen.num_computed.tolist() == [16]
    assert device.core.inspect(1)["num_cached_tokens"] == 16


def test_v_e2_pool_trace() -> None:
    """Free queue [U5, C3, C4], U unhashed, C hashed."""
    pool = BlockPool(6)
    pool.allocate(5)
    nodes = {block: make_node(None, ids(block)) for block in (3, 4)}
    for block, node in nodes.items():
        pool.name(block, node)
    pool.free([3, 4, 5])
    assert pool.free_queue() == [5, 3, 4]
    pool.touch([pool.find(nodes[3])])
    assert pool.free_queue() == [5, 4]
    assert pool.ref_count(3) == 1
    pool.free([3])
    assert pool.free_queue() == [5, 4, 3]
    assert pool.allocate(2) == [5, 4]
    assert pool.find(nodes[4]) == 0
    assert pool.find(nodes[3]) == 3


@dataclass
class HandmadePlan:
    """A plan whose three sequences have their tables from before and compute [2, 1, 3] tokens after [4, 10, 0]."""

    seq_ids: Any = field(default_factory=lambda: np.array([0, 1, 2], np.int64))
    num_scheduled: Any = field(default_factory=lambda: ids(2, 1, 3))
    num_computed: Any = field(default_factory=lambda: ids(4, 10, 0))
    num_drafts: Any = field(default_factory=lambda: ids(0, 0, 0))
    draft_tokens: Any = field(default_factory=ids)
    samples: Any = field(default_factory=lambda: np.ones(3, np.uint8))
    fresh_slices: Any = field(default_factory=lambda: ids(0, 1, 2))
    fresh_offsets: Any = field(default_factory=lambda: ids(0, 6, 17, 20))
    fresh_tokens: Any = field(default_factory=lambda: ids(*range(6), *range(11), *range(3)))
    block_starts: Any = field(default_factory=lambda: ids(0, 0, 0))
    block_offsets: Any = field(default_factory=lambda: ids(0, 2, 5, 6))
    block_ids: Any = field(default_factory=lambda: ids(7, 2, 1, 3, 5, 8))
    dropped: Any = field(default_factory=lambda: np.empty(0, np.int64))


def test_v_e3_packing() -> None:
    rows, plan = RowTable(block_size=4, num_groups=1), HandmadePlan()
    rows.apply(plan)
    num_logits, max_blocks = rows.sizes(plan)
    batch = PackedBatch.empty(6, 3, num_logits, 1, max_blocks)
    rows.pack(plan, batch)
    assert batch.request_index.tolist() == [0, 0, 1, 2, 2, 2]
    assert batch.positions.tolist() == [4, 5, 10, 0, 1, 2]
    assert batch.query_start_loc.tolist() == [0, 2, 3, 6]
    assert batch.seq_lens.tolist() == [6, 11, 3]
    assert batch.logits_indices.tolist() == [1, 2, 5]
    assert batch.block_tables.tolist() == [[[7, 2, 0], [1, 3, 5], [8, 0, 0]]]
    assert batch.slots.tolist() == [[8, 9, 22, 32, 33, 34]]
    assert batch.prev_positions.tolist() == [-1, -1, -1]


def test_d_e3_rollback() -> None:
    """Computed 100, committed 101, four tokens verified, one draft accepted; and the same under one step of overlap."""
    ledger = Ledger(101)
    ledger.start_at(100)
    promised = ledger.advance(4, 3)
    assert ledger.num_computed == 104
    ledger.commit(4, 2, promised, 2)
    assert (ledger.num_computed, ledger.num_tokens) == (102, 103)

    device = CoreDevice()
    device.add(0, 100)
    device.step()
    device.core.set_drafts(0, [1, 2, 3])
    assert device.plan() == {0: 4}
    device.core.set_drafts(0, [4, 5, 6])
    assert device.plan() == {0: 4}
    optimistic = device.plan_seen.num_computed[0] + device.plan_seen.num_scheduled[0]
    assert optimistic == 108
    device.commit(emits={0: [1, 42]})
    assert device.counts(0)["num_tokens"] == 103
    assert device.counts(0)["num_computed"] == 106  # the truth about the step in flight


def test_twins_in_one_step() -> None:
    """Two equal prompts of 40 in one step: the second shares the two full blocks that the first is about to write."""
    device = CoreDevice(block_size=16)
    device.add(0, 40)
    device.add(1, 40)
    assert device.plan() == {0: 40, 1: 8}
    first, second = (device.core.inspect(x)["blocks"][0] for x in (0, 1))
    assert first[:2] == second[:2]
    assert first[2] != second[2]


def test_correction_1_computed_is_not_finished() -> None:
    """Planned progress is visible at once; what is valid only when the step has returned."""
    device = CoreDevice()
    device.add(0, 10)
    device.plan()
    counts = device.counts(0)
    assert (counts["num_computed"], counts["num_in_flight"]) == (10, 10)
    assert counts["num_computed"] - (counts["num_in_flight"] - counts["num_stale"]) == 0
    device.commit()
    assert device.counts(0)["num_in_flight"] == 0


def test_correction_1_free_is_not_forgotten() -> None:
    device = CoreDevice()
    device.add(0, 9, max_tokens=1)
    device.step()
    assert device.core.num_used_blocks == 0
    device.add(1, 9)
    assert device.plan() == {1: 1}


def test_correction_1_packed_tokens_are_not_output_tokens() -> None:
    device = CoreDevice(token_budget=6, prefix_caching=False)
    device.add(0, 4)
    device.add(1, 4)
    assert sum(device.plan().values()) == 6
    assert len(device.commit().tokens) == 1


def test_correction_2_scheduled_tokens_contain_the_drafts() -> None:
    device = CoreDevice(token_budget=4, draft_slots=3, input_budget=7)
    device.add(0, 4)
    device.step()
    device.core.set_drafts(0, [1, 2, 3])
    assert device.plan() == {0: 4}
    assert device.plan_seen.token_budget_left == 0  # the drafts verified now are charged as tokens, once
    assert device.plan_seen.input_budget_left == 0  # and the room for drafting afterwards besides


def ledger_trace() -> list[str]:
    """The story told in docs/ledger.md, row by row, by the real core."""
    device = CoreDevice(num_blocks=7, token_budget=7, prefix_caching=False, full_sequence_must_fit=False)
    rows = []

    def row(call: str) -> None:
        counts = device.counts(0)
        valid = counts["num_computed"] - (counts["num_in_flight"] - counts["num_stale"])
        rows.append("| " + " | ".join([call, *map(str, counts.values()), str(valid)]) + " |")

    device.add(9, range(4))  # an elder, which decodes one token a step
    device.step()
    device.add(0, range(100, 110), max_tokens=8)
    row("`add`, a prompt of 10")
    device.plan()
    row("`plan` step 1: 6 of 10, the budget's end")
    device.plan()
    row("`plan` step 2: the other 4, so a token is promised")
    device.commit()
    row("`commit` step 1: 6 valid, nothing emitted")
    device.commit()
    row("`commit` step 2: 4 valid, 1 emitted")
    device.core.set_drafts(0, [7, 8, 9])
    device.plan()
    row("`plan` step 3: the last token and 3 drafts")
    device.commit(emits={0: [7, 42]})
    row("`commit` step 3: 1 draft accepted, 1 token sampled")
    device.plan()
    row("`plan` step 4: 1 token")
    assert device.plan() == {9: 1}
    row("`plan` step 5: no block for the elder, so this one gives way")
    device.commit()
    row("`commit` step 4: stale, its token is delivered")
    return rows


def test_ledger_trace_of_the_docs() -> None:
    text = (Path(__file__).parents[2] / "docs" / "ledger.md").read_text()
    missing = [row for row in ledger_trace() if row not in text]
    assert not missing

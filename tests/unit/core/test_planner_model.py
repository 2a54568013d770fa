"""The real scheduler against the plain-Python model of the MIXED discipline: equal plans, counts, blocks and queues
over random adds, plans, results, aborts, failures, drafts and resets, with up to two steps in flight."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import numpy as np
import pytest
from blocks_model import FULL, SLIDING, Knobs, Seq
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from planner_model import PlannerModel, SliceModel
from pool_model import NULL

from headrace._core import InvalidField, Scheduler

GROUPS = [((FULL, 0),), ((FULL, 0), (SLIDING, 6)), ((SLIDING, 9), (FULL, 0), (SLIDING, 1)), ((SLIDING, 5),)]
COUNTS = ("num_computed", "num_in_flight", "num_promised", "num_stale")


@st.composite
def knobs(draw: st.DrawFn) -> Knobs:
    """Small engines: every shortage is near."""
    draft_slots = draw(st.integers(0, 2))
    return Knobs(
        num_blocks=draw(st.integers(10, 24)),
        block_size=draw(st.sampled_from([2, 4])),
        groups=draw(st.sampled_from(GROUPS)),
        prefix_caching=draw(st.sampled_from([True, True, False])),
        token_budget=draw(st.integers(3, 30)),
        input_budget=draw(st.integers(draft_slots + 3, 40)),
        draft_slots=draft_slots,
        lookahead=draw(st.integers(0, 3)),
        max_seqs=draw(st.integers(2, 6)),
        max_model_len=draw(st.integers(12, 40)),
        long_prefill_threshold=draw(st.sampled_from([0, 0, 1, 5])),
        watermark_blocks=draw(st.integers(0, 3)),
        full_sequence_must_fit=draw(st.booleans()),
        priority=draw(st.booleans()),
    )


@st.composite
def requests(draw: st.DrawFn) -> dict[str, Any]:
    """Prompts that often share their beginning."""
    stem = draw(st.sampled_from([[], [0] * 4, [0] * 8, [1] * 12]))
    return {
        "prompt": stem + draw(st.lists(st.integers(0, 1), min_size=1, max_size=10)),
        "max_tokens": draw(st.one_of(st.integers(1, 16), st.just(2**31 - 1))),
        "priority": draw(st.integers(-1, 1)),
        "arrival": draw(st.integers(0, 2)),
        "reads_cache": draw(st.sampled_from([True, True, True, False])),
    }


class PlannerMachine(RuleBasedStateMachine):
    @initialize(knobs=knobs(), depth=st.sampled_from([1, 2, 2]))
    def start(self, knobs: Knobs, depth: int) -> None:
        self.knobs, self.depth = knobs, depth
        self.model = PlannerModel(knobs)
        settings = {**knobs.__dict__, "groups": list(knobs.groups)}
        self.real = Scheduler(weak_hash=True, **settings)
        self.next_id = 0

    @rule(requests=st.lists(requests(), min_size=2, max_size=6))
    def add(self, requests: list[dict[str, Any]]) -> None:
        for fields in requests:
            prompt = fields.pop("prompt")
            array = np.array(prompt, np.int32)
            if len(prompt) >= self.knobs.max_model_len or not self.model.fits(len(prompt), fields["max_tokens"]):
                with pytest.raises(InvalidField):
                    self.real.add(self.next_id, array, **fields)
                continue
            self.real.add(self.next_id, array, **fields)
            self.model.add(self.next_id, prompt, **fields)
            self.next_id += 1

    @precondition(lambda self: self.model.seqs)
    @rule(ticks=st.integers(20, 60), seed=st.integers(0, 2**16), drafting=st.booleans())
    def run(self, ticks: int, seed: int, drafting: bool) -> None:
        """Some turns of the loop, now and then disturbed. Whether a step is planned or one returns is drawn."""
        draw = Random(seed)
        for _ in range(ticks):
            chance = draw.random()
            if chance < 0.1:
                self.disturb(draw)
            elif self.model.steps and (len(self.model.steps) == self.depth or chance < 0.3):
                self.commit(draw)
            else:
                if drafting:
                    self.set_drafts(draw)
                self.plan()
            self.same()
            self.identities()

    def disturb(self, draw: Random) -> None:
        kind = draw.choice(["abort", "unready", "ready", "ready", "fail", "fail"])
        if kind == "fail" and self.model.steps:
            self.real.fail(self.model.steps[0][0])
            self.model.fail()
        elif kind == "abort" and self.model.seqs:
            seq_id = draw.choice(sorted(self.model.seqs))
            assert self.real.finish(seq_id)
            assert not self.real.finish(seq_id)
            self.model.abort(seq_id)
        elif self.model.seqs:
            for seq_id in draw.choices(sorted(self.model.seqs), k=3):
                self.model.seqs[seq_id].ready = kind == "ready"
                self.real.set_ready(seq_id, kind == "ready")

    def set_drafts(self, draw: Random) -> None:
        for seq in self.model.running:
            seq.drafts = draw.choices(range(4), k=draw.randint(0, 4))
            self.real.set_drafts(seq.id, seq.drafts)

    def plan(self) -> None:
        expected = self.model.plan()
        plan = self.real.plan()
        columns = (plan.seq_ids, plan.num_scheduled, plan.num_computed, plan.num_drafts, plan.samples)
        rows = zip(*(column.tolist() for column in columns))
        assert [SliceModel(*row[:4], bool(row[4])) for row in rows] == expected
        assert plan.token_budget_left == self.model.tokens_left
        assert plan.input_budget_left == self.model.inputs_left
        assert plan.total_tokens <= self.knobs.token_budget
        assert plan.total_tokens + self.knobs.draft_slots * len(expected) <= self.knobs.input_budget
        for row in expected:
            assert row.num_computed + row.q < self.knobs.max_model_len

    def commit(self, draw: Random) -> None:
        step, slices = self.model.steps[0]
        accepted = [draw.randint(0, planned.drafts) for planned in slices]
        emitted = [
            draw.choices(range(2), k=num + 1) if planned.samples else [] for planned, num in zip(slices, accepted)
        ]
        valid = [planned.q - planned.drafts + num for planned, num in zip(slices, accepted)]
        offsets = np.cumsum([0, *map(len, emitted)], dtype=np.int32)
        tokens = np.array([token for row in emitted for token in row], np.int32)
        self.model.commit(accepted, emitted)
        self.real.commit(step, np.array(valid, np.int32), offsets, tokens)

    @invariant()
    def same(self) -> None:
        if not hasattr(self, "real"):
            return
        assert self.real.running_ids() == [seq.id for seq in self.model.running]
        assert self.real.waiting_ids() == [seq.id for seq in self.model.waiting]
        assert self.real.num_preemptions == self.model.num_preemptions
        assert self.real.num_steps_in_flight == len(self.model.steps)
        for seq in self.model.seqs.values():
            self.same_sequence(seq)
        pool = self.model.blocks.pool
        assert self.real.free_queue().tolist() == pool.queue
        assert self.real.ref_counts().tolist() == [0, *(pool.refs[block] for block in pool.ids)]

    def same_sequence(self, seq: Seq) -> None:
        real = self.real.inspect(seq.id)
        assert real["tokens"] == seq.tokens
        assert real["num_tokens"] == len(seq.tokens)
        assert [real[name] for name in COUNTS] == [getattr(seq, name) for name in COUNTS]
        assert real["blocks"] == seq.tables

    @invariant()
    def identities(self) -> None:
        if not hasattr(self, "real"):
            return
        held: Counter[int] = Counter()
        for seq in self.model.running:
            real = self.real.inspect(seq.id)
            valid = real["num_computed"] - (real["num_in_flight"] - real["num_stale"])
            assert 0 <= valid < real["num_tokens"]
            assert real["num_stale"] == 0
            for table in real["blocks"]:
                assert len(table) * self.knobs.block_size >= real["num_computed"]
                held.update(block for block in table if block != NULL)
        counts = self.real.ref_counts().tolist()
        assert {block: count for block, count in enumerate(counts) if count} == dict(held)
        assert self.real.num_free_blocks + self.real.num_used_blocks == self.real.num_blocks
        if not self.knobs.prefix_caching:
            assert all(count <= 1 for count in counts)


TestPlanner = PlannerMachine.TestCase
TestPlanner.settings = settings(max_examples=300, stateful_step_count=12, deadline=None)

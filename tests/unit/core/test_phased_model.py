"""The real scheduler against the plain-Python model of the phased discipline: equal plans, counts, blocks and queues
over random adds, forks, prompt and decode steps, companions, results, aborts and failures, up to two in flight."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from blocks_model import FULL, SLIDING
from phased_model import PhasedKnobs, PhasedModel
from planner_model import SliceModel

from headrace._core import InvalidField, Scheduler
from headrace.contract.plan import Role, StepKind

GROUPS = [((FULL, 0),), ((FULL, 0), (SLIDING, 6)), ((SLIDING, 9), (FULL, 0), (SLIDING, 1)), ((SLIDING, 5),)]
COUNTS = ("num_computed", "num_in_flight", "num_promised", "num_stale")
SCHEDULES, CALLS = 250, 120


def draw_knobs(draw: Random) -> PhasedKnobs:
    """Small engines: every shortage is near."""
    draft_slots = draw.randint(0, 2)
    return PhasedKnobs(
        num_blocks=draw.randint(10, 24),
        block_size=draw.choice([2, 4]),
        groups=draw.choice(GROUPS),
        prefix_caching=draw.random() < 0.7,
        token_budget=draw.randint(3, 30),
        input_budget=draw.randint(draft_slots + 3, 40),
        draft_slots=draft_slots,
        lookahead=draw.randint(0, 3),
        max_seqs=draw.randint(2, 6),
        max_model_len=draw.randint(12, 40),
        long_prefill_threshold=draw.choice([0, 0, 1, 5]),
        watermark_blocks=draw.randint(0, 3),
        full_sequence_must_fit=draw.random() < 0.5,
        min_slice=draw.choice([1, 1, 2, 3]),
        max_sum_keys=draw.choice([0, 0, 25, 40]),
    )


class Schedule:
    """One random run of both."""

    def __init__(self, seed: int) -> None:
        self.draw = Random(seed)
        while True:  # some knobs contradict each other
            self.knobs = draw_knobs(self.draw)
            settings = {**self.knobs.__dict__, "groups": list(self.knobs.groups)}
            try:
                self.real = Scheduler(weak_hash=True, role=int(Role.NORMAL), **settings)
                break
            except InvalidField:
                continue
        self.model = PhasedModel(self.knobs)
        self.depth = self.draw.choice([1, 2, 2])
        self.next_id = 0
        self.seen = {"prefill": 0, "decode": 0, "fork": 0, "clone": 0, "ignored": 0, "fail": 0}

    def run(self, calls: int) -> None:
        for _ in range(calls):
            chance = self.draw.random()
            if chance < 0.12:
                self.add()
            elif chance < 0.22:
                self.disturb()
            elif self.model.steps and (len(self.model.steps) == self.depth or chance < 0.45):
                self.commit()
            else:
                self.plan()
            self.same()

    def add(self) -> None:
        draw = self.draw
        stem = draw.choice([[], [0] * 4, [0] * 8, [1] * 12])
        prompt = stem + draw.choices(range(2), k=draw.randint(1, 10))
        checkpoints = [draw.randint(1, len(prompt) - 1)] if len(prompt) > 3 and draw.random() < 0.3 else []
        fields = {"max_tokens": draw.randint(1, 16), "reads_cache": draw.random() < 0.8}
        fields |= {"priority": 0, "arrival": float(self.next_id)}
        self.real.add(self.next_id, np.array(prompt, np.int32), checkpoints=checkpoints, **fields)
        self.model.add(self.next_id, prompt, checkpoints=tuple(checkpoints), **fields)
        self.next_id += 1

    def disturb(self) -> None:
        if not self.model.seqs:
            return
        kind, seq_id = (
            self.draw.choice(["abort", "fork", "fork", "fail", "ready"]),
            self.draw.choice([*self.model.seqs]),
        )
        if kind == "fail" and self.model.steps:
            self.real.fail(self.model.steps[0][0])
            self.model.fail()
            self.seen["fail"] += 1
        elif kind == "abort":
            assert self.real.finish(seq_id)
            self.model.abort(seq_id)
        elif kind == "ready":
            ready = self.draw.random() < 0.7
            for each in self.model.seqs.values():
                each.ready = ready
                self.real.set_ready(each.id, ready)
        elif kind == "fork":
            self.fork(seq_id)

    def fork(self, seq_id: int) -> None:
        """From all that the parent has computed and one token more, or from all but the last of it."""
        parent = self.model.seqs[seq_id]
        shared = max(0, parent.num_computed - self.draw.randint(0, 1))
        prompt = [*parent.tokens[:shared], self.draw.randint(0, 1)]
        try:
            self.real.fork(seq_id, self.next_id, np.array(prompt, np.int32), [])
        except InvalidField:
            return
        self.model.fork(seq_id, self.next_id, prompt)
        self.model.seqs[self.next_id].ready = parent.ready
        self.next_id += 1
        self.seen["fork"] += 1

    def plan(self) -> None:
        prefill, companion = self.draw.random() < 0.4, self.draw.random() < 0.1
        expected, is_step = self.model.plan_kind(prefill, companion)
        kind = StepKind.PREFILL if prefill else StepKind.DECODE
        plan = self.real.plan(int(kind), companion=companion)
        columns = (plan.seq_ids, plan.num_scheduled, plan.num_computed, plan.num_drafts, plan.samples)
        rows = zip(*(column.tolist() for column in columns))
        assert [SliceModel(*row[:4], bool(row[4])) for row in rows] == expected
        assert (plan.step >= 0) == is_step
        assert plan.token_budget_left == self.model.tokens_left
        assert plan.input_budget_left == self.model.inputs_left
        assert plan.clone_blocks.tolist() == self.model.clones
        assert self.real.take_ignored() == self.model.ignored
        self.seen["ignored"] += len(self.model.ignored)
        self.model.ignored = []
        self.seen["prefill" if prefill else "decode"] += bool(expected)
        self.seen["clone"] += len(self.model.clones)

    def commit(self) -> None:
        step, slices = self.model.steps[0]
        emitted = [[self.draw.randint(0, 1)] if planned.samples else [] for planned in slices]
        offsets = np.cumsum([0, *map(len, emitted)], dtype=np.int32)
        tokens = np.array([token for row in emitted for token in row], np.int32)
        self.model.commit([0] * len(slices), emitted)
        self.real.commit(step, np.array([planned.q for planned in slices], np.int32), offsets, tokens)

    def same(self) -> None:
        model, real = self.model, self.real
        assert real.running_ids() == [seq.id for seq in model.running]
        assert real.prompted_ids() == [seq.id for seq in model.prompted]
        assert real.waiting_ids() == [seq.id for seq in model.waiting]
        assert real.num_preemptions == model.num_preemptions
        assert real.num_steps_in_flight == len(model.steps)
        for seq in model.seqs.values():
            seen = real.inspect(seq.id)
            assert seen["tokens"] == seq.tokens
            assert [seen[name] for name in COUNTS] == [getattr(seq, name) for name in COUNTS]
            assert seen["blocks"] == seq.tables
        pool = model.blocks.pool
        assert real.free_queue().tolist() == pool.queue
        assert real.ref_counts().tolist() == [0, *(pool.refs[block] for block in pool.ids)]


@pytest.mark.parametrize("part", range(5))
def test_random_schedules_plan_alike(part: int) -> None:
    seen: dict[str, int] = {}
    for seed in range(part * SCHEDULES, (part + 1) * SCHEDULES):
        schedule = Schedule(seed)
        try:
            schedule.run(CALLS)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        seen = {name: seen.get(name, 0) + count for name, count in schedule.seen.items()}
    assert all(count > 50 for count in seen.values()), seen

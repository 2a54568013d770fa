"""Scenarios that broke other engines, by their numbers, through the real core."""

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np
import pytest
from core_device import CoreDevice, prompt

from headrace._core import BlockPool, ExtraKeys, make_node
from headrace.contract.plan import Finish, Note, Outcome

FULL, SLIDING = 0, 1


def test_k1_victim_already_scheduled_gives_its_budgets_back() -> None:
    device = CoreDevice(num_blocks=8, token_budget=22, input_budget=25, draft_slots=1, priority=True)
    worst, best, middle = range(3)
    device.add(worst, prompt(0, 7), max_tokens=8, priority=5)
    device.step()
    device.add(best, prompt(1, 8), max_tokens=8, priority=0)
    device.add(middle, prompt(2, 6), max_tokens=8, priority=1)
    device.step()
    assert device.core.running_ids() == [worst, best, middle]
    assert device.core.num_free_blocks == 1
    # worst is served first and takes the last block; then best needs one too
    assert device.plan() == {best: 1, middle: 1}
    assert device.notes(Note.PREEMPTED) == {worst: 3}
    assert device.plan_seen.token_budget_left == 22 - 2
    assert device.plan_seen.input_budget_left == 25 - 2 * (1 + 1)
    device.commit()
    device.run_dry()
    device.check_outputs()
    assert set(device.finishes) == {worst, best, middle}


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@pytest.mark.parametrize("num_blocks", [9, 11, 14])
def test_k2_at_most_one_preemption_per_emitted_token(num_blocks: int, policy: str, overlap: bool) -> None:
    device = CoreDevice(shadow=True, num_blocks=num_blocks, token_budget=8, priority=policy == "priority")
    for seq_id in range(4):
        device.add(seq_id, prompt(seq_id, 5 + 3 * seq_id), max_tokens=14)
    device.run_dry(overlap)
    assert all(len(output) == 14 for output in device.outputs.values())
    assert 0 < device.core.num_preemptions <= 4 * 14
    device.check_outputs()


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("threshold", [0, 3])
def test_k4_two_prompts_of_seventy_percent(threshold: int, overlap: bool) -> None:
    device = CoreDevice(num_blocks=11, token_budget=6, long_prefill_threshold=threshold, prefix_caching=False)
    computed: Counter[tuple[int, int]] = Counter()
    device.add(0, prompt(0, 28), max_tokens=8)
    device.add(1, prompt(1, 28), max_tokens=8)
    while device.core.num_unfinished:
        slices = device.plan()
        for seq_id, start in zip(device.plan_seen.seq_ids.tolist(), device.plan_seen.num_computed.tolist()):
            computed.update((seq_id, position) for position in range(start, start + slices[seq_id]))
        if len(device.in_flight) > (overlap and bool(slices)):
            device.commit()
        assert device.num_steps < 100
    assert max(computed.values()) <= 2
    device.check_outputs()


def test_k6_cached_prompts_do_not_use_up_the_budget() -> None:
    device = CoreDevice(num_blocks=200, token_budget=80, max_seqs=10)
    for seq_id in range(10):
        device.add(seq_id, [*prompt(seq_id, 36), 7], max_tokens=1)
        device.run_dry()
    for seq_id in range(10):
        device.add(seq_id, [*prompt(seq_id, 36), 8, 8, 8, 8], max_tokens=1)
    assert device.plan() == dict.fromkeys(range(10), 4)


@pytest.mark.parametrize("overlap", [False, True])
def test_k11_idle_after_pressure_holds_nothing(overlap: bool) -> None:
    device = CoreDevice(shadow=True, num_blocks=9, token_budget=16, groups=[(FULL, 0), (SLIDING, 6)])
    for seq_id in range(6):
        device.add(seq_id, prompt(seq_id, 6), max_tokens=9)
    device.run_dry(overlap)
    assert device.core.num_preemptions > 0
    assert device.core.num_used_blocks == 0
    assert device.core.plan().total_tokens == 0
    device.check_outputs()


def test_k16_abort_between_schedule_and_result_is_no_normal_end() -> None:
    device = CoreDevice()
    device.add(0, 4, max_tokens=1)  # the token in flight would end it
    device.add(1, prompt(1, 4), max_tokens=1)
    device.plan()
    assert device.core.finish(0)
    result = device.commit()
    assert result.outcomes.tolist() == [Outcome.GONE, Outcome.COMMITTED]
    assert result.finishes.tolist() == [Finish.NONE, Finish.LENGTH]
    assert np.diff(result.offsets).tolist() == [0, 1]
    assert device.core.num_used_blocks == 0


def test_k18_adapter_and_salt_of_one_name_do_not_meet() -> None:
    device = CoreDevice(shadow=True, token_budget=100)
    keys = [None, ExtraKeys(adapter="X"), ExtraKeys(salt="X"), ExtraKeys(embeds_digest="X")]
    for seq_id, extra in enumerate(keys):
        device.add(seq_id, 20, max_tokens=1, **({"keys": extra} if extra else {}))
    assert device.step() == dict.fromkeys(range(4), 20)
    device.add(4, 20, max_tokens=1, keys=keys[2])
    assert device.step() == {4: 4}


def test_k20_colliding_digests_never_give_foreign_blocks() -> None:
    weak, strong = (CoreDevice(shadow=True, num_blocks=80, weak_hash=weak) for weak in (True, False))
    draw = Random(20)
    digests = set()
    for seq_id in range(150):
        tokens = draw.choices([1, 2], k=draw.randint(5, 20))
        digests.add(make_node(None, np.array(tokens[:4], np.int32), weak=True).digest)
        plans = []
        for device in (weak, strong):
            device.add(seq_id, tokens, max_tokens=2)
            plans.append(device.step())
            device.run_dry()
        assert plans[0] == plans[1]
    assert len(digests) <= 4  # a collision at nearly every look-up
    assert weak.core.prefix_hits == strong.core.prefix_hits > 0


def test_k22_step_that_never_ran_leaves_no_hits() -> None:
    device = CoreDevice(shadow=True)
    device.add(0, 21, max_tokens=3)
    device.plan()
    assert device.fail() == [0]
    assert device.core.num_used_blocks == 0
    device.core.finish(0)
    device.add(1, 21, max_tokens=3)
    assert device.plan() == {1: 21}
    device.commit()
    device.run_dry()
    device.check_outputs()


def test_k22_under_overlap_everyone_who_touched_such_a_block_is_recomputed() -> None:
    device = CoreDevice(shadow=True)
    device.add(0, 21, max_tokens=3)
    device.plan()
    device.add(1, 21, max_tokens=3)
    assert device.plan() == {0: 1, 1: 1}  # 1 hits blocks that the first step is writing
    assert device.fail() == [0]
    assert device.core.waiting_ids() == [0, 1]
    assert device.plan() == {}  # results of the second step are still to come
    assert device.commit().outcomes.tolist() == [Outcome.DROPPED] * 2
    assert device.plan() == {0: 21, 1: 1}
    device.commit()
    device.run_dry()
    device.check_outputs()


def test_k22_names_given_before_the_failed_step_stay() -> None:
    device = CoreDevice(shadow=True, token_budget=8)
    device.add(0, 20, max_tokens=3)
    device.step()
    device.plan()
    device.fail()
    assert device.plan() == {0: 8}
    assert device.plan_seen.num_computed.tolist() == [8]  # the first step's blocks are still hits


def test_k24_freeing_a_block_twice() -> None:
    pool = BlockPool(5)

    def free_blocks() -> set[int]:
        return {block for block in range(1, 5) if pool.ref_count(block) == 0}

    (block,) = pool.allocate(1)
    with pytest.raises(RuntimeError):
        pool.free([block, block])
    assert len(pool.free_queue()) == pool.num_free == len(free_blocks()) == 3
    pool.touch([block])
    pool.free([block, block])
    assert len(pool.free_queue()) == pool.num_free == len(free_blocks()) == 4


@pytest.mark.parametrize(
    "groups", [[(FULL, 0), (SLIDING, 10)], [(SLIDING, 10)], [(SLIDING, 3), (SLIDING, 14), (FULL, 0)]]
)
def test_k28_many_turns_past_a_sliding_window(groups: list[tuple[int, int]]) -> None:
    """The shadow memory fails the test when a hit claims KV that is not there."""
    device = CoreDevice(shadow=True, num_blocks=60, token_budget=16, groups=groups)
    draw = Random(28)
    histories = [prompt(user, 6) for user in range(3)]
    for turn in range(24):
        user = turn % 3
        device.add(turn, histories[user], max_tokens=draw.randint(1, 6))
        device.run_dry(overlap=bool(turn % 2))
        histories[user] = histories[user] + device.outputs[turn] + prompt(50 + turn, draw.randint(1, 5))
        if len(histories[user]) > 90:
            histories[user] = histories[user][:20]
    assert device.core.prefix_hits > 100
    device.check_outputs()

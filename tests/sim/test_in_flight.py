"""What surrounds a step in flight: overlap, stale results, resets, aborts at every stage. Through the real core."""

from __future__ import annotations

from collections import Counter
from random import Random

from core_device import CoreDevice, prompt

from headrace.contract.plan import Finish, Note, Outcome

FULL, SLIDING = 0, 1


def test_overlap_plans_the_next_step_before_the_result() -> None:
    device = CoreDevice(shadow=True)
    device.add(0, 6, max_tokens=3)
    assert device.plan() == {0: 6}
    assert device.plan() == {0: 1}  # its input is being sampled
    assert device.counts(0) | {
        "num_tokens": 6,
        "num_computed": 7,
        "num_in_flight": 7,
        "num_promised": 2,
    } == device.counts(0)
    assert device.plan() == {0: 1}
    assert device.plan() == {}  # steps in flight may already bring its third and last token
    for _ in range(3):
        device.commit()
    assert device.finishes == {0: Finish.LENGTH}
    device.check_outputs()


def test_result_of_an_ordinary_preemption_is_delivered() -> None:
    device = CoreDevice(shadow=True, num_blocks=6)
    device.add(0, prompt(0, 8), max_tokens=8)
    device.add(1, prompt(1, 8), max_tokens=8)
    device.plan()
    assert device.plan() == {0: 1}  # 1 gave way while its first token was being sampled
    assert device.notes(Note.PREEMPTED) == {1: 2}
    assert device.counts(1) | {"num_stale": 8, "num_in_flight": 8, "num_computed": 0} == device.counts(1)
    device.plan()
    assert device.notes(Note.NOT_DRAINED) == {1: 8}
    result = device.commit()
    assert result.outcomes.tolist() == [Outcome.COMMITTED, Outcome.DELIVERED]
    assert device.counts(1) | {"num_tokens": 9, "num_stale": 0, "num_in_flight": 0} == device.counts(1)
    while device.in_flight:
        device.commit()
    device.run_dry(overlap=True)
    assert [len(device.outputs[x]) for x in (0, 1)] == [8, 8]
    device.check_outputs()


def test_result_after_a_reset_is_dropped() -> None:
    device = CoreDevice(shadow=True)
    device.add(0, 9, max_tokens=4)
    device.plan()
    assert not device.core.reset_prefix_cache()
    assert device.counts(0)["num_computed"] == 9  # refused: nothing has changed
    assert device.core.reset_prefix_cache(reset_running=True)
    assert device.core.num_used_blocks == 0
    assert device.commit().outcomes.tolist() == [Outcome.DROPPED]
    assert device.counts(0)["num_tokens"] == 9
    assert device.plan() == {0: 9}  # all cached content is forgotten
    device.commit()
    device.run_dry()
    device.check_outputs()


def test_reset_of_an_idle_cache() -> None:
    device = CoreDevice()
    device.add(0, 9, max_tokens=1)
    device.step()
    assert device.core.reset_prefix_cache()
    device.add(1, 9, max_tokens=1)
    assert device.plan() == {1: 9}


def test_fresh_sequence_with_the_id_of_an_aborted_one() -> None:
    """The old one's result is nobody's; the new one's own comes later."""
    device = CoreDevice(shadow=True)
    device.add(0, prompt(1, 6), max_tokens=2)
    device.plan()
    device.core.finish(0)
    device.add(0, prompt(2, 10), max_tokens=2)
    assert device.plan() == {0: 10}
    assert device.plan_seen.dropped.tolist() == [0]
    assert device.plan_seen.fresh_slices.tolist() == [0]
    assert device.commit().outcomes.tolist() == [Outcome.GONE]
    assert device.counts(0)["num_tokens"] == 10
    assert device.commit().outcomes.tolist() == [Outcome.COMMITTED]
    device.run_dry()
    assert len(device.outputs[0]) == 2
    device.check_outputs()


def stage_of(device: CoreDevice, seq_id: int) -> str:
    """Where in its life a sequence is when it is aborted."""
    seen = device.core.inspect(seq_id)
    if seen["num_stale"]:
        return "preempted, not drained"
    if not seen["running"]:
        return "preempted" if seen["num_preemptions"] else "waiting"
    return ("in flight, " if seen["num_in_flight"] else "idle, ") + ("output" if device.outputs[seq_id] else "prompt")


def test_aborts_at_every_stage_leave_no_block_behind() -> None:
    """10,000 random operations on an engine under pressure, the shadow memory watching every read."""
    draw = Random(10_000)
    stages: Counter[str] = Counter()
    device = CoreDevice(
        shadow=True, num_blocks=26, token_budget=10, max_seqs=6, groups=[(FULL, 0), (SLIDING, 7)], watermark_blocks=1
    )
    next_id = 0
    for _ in range(10_000):
        chance = draw.random()
        live = device.core.running_ids() + device.core.waiting_ids()
        if chance < 0.12 and len(live) < 12:
            stem = prompt(draw.randint(0, 2), draw.randint(1, 14))
            device.add(next_id, stem + prompt(draw.randint(3, 5), 1), max_tokens=draw.randint(1, 12))
            next_id += 1
        elif chance < 0.2 and live:
            seq_id = draw.choice(live)
            stages[stage_of(device, seq_id)] += 1
            device.core.finish(seq_id)
        elif chance < 0.205 and device.in_flight:
            device.fail()
        elif chance < 0.208:
            device.core.reset_prefix_cache(reset_running=draw.random() < 0.5)
        elif device.in_flight and (len(device.in_flight) == 2 or chance < 0.5):
            device.commit()
        else:
            device.plan()
        device.check()
    names = ["waiting", "preempted", "preempted, not drained"]
    names += [f"{flight}, {part}" for flight in ("in flight", "idle") for part in ("prompt", "output")]
    assert all(stages[name] > 5 for name in names), stages
    while device.in_flight:
        device.commit()
    device.run_dry(overlap=True)
    device.check_outputs()
    assert device.core.num_unfinished == device.core.num_used_blocks == 0
    assert not device.core.ref_counts().any()

"""The phase-voted cadence: points, both votes, companions, and random groups that must never deadlock."""

from __future__ import annotations

from random import Random

import pytest
from phase_group import Group, Rank

from headrace._core import Scheduler
from headrace.contract.errors import GroupBroken
from headrace.contract.plan import Role, StepKind
from headrace.engine.phase_voted import OneKind, PhaseVoted, is_all_point, is_any_point
from headrace.parallel.vote import Ballot, Tally

INTERVALS = {"all_interval": 70, "any_interval": 100}


def group_of(size: int, intervals: dict[str, int] = INTERVALS, **settings: int) -> Group:
    return Group([Rank(i, size, intervals, **settings) for i in range(size)])


def kinds(plans: list) -> set[StepKind]:
    return {StepKind(plan.kind) for plan in plans}


def test_points() -> None:
    assert [step for step in range(301) if is_all_point(step, 70)] == [0, 70, 140, 210, 280]
    assert [step for step in range(301) if is_any_point(step, 100)] == [100, 200, 300]
    assert is_all_point(700, 70)
    assert is_any_point(700, 100)  # and there ANY goes first


def test_where_both_points_fall_together_one_rank_is_enough() -> None:
    cadence = PhaseVoted()
    cadence.decode_step = 700
    one_wants = Tally(all_want_prompt=False, any_wants_prompt=True, any_decodes=True, time_budget_ns=0)
    assert cadence._is_prompt_turn(one_wants)
    cadence.decode_step = 770
    assert not cadence._is_prompt_turn(one_wants)


def test_an_idle_group_does_not_wait() -> None:
    group = group_of(3)
    for _ in range(5):
        assert all(plan.step == -1 for plan in group.step())
    group.ranks[1].add(0, [1, 2, 3], 4)
    plans = group.step()
    assert kinds(plans) == {StepKind.PREFILL}
    assert [len(plan.seq_ids) for plan in plans] == [0, 1, 0]  # the others keep it company
    assert [plan.step for plan in plans] == [0, 0, 0]


def test_a_companion_decodes_along() -> None:
    group = group_of(2)
    group.ranks[0].add(0, [1, 2, 3], 4)
    for kind in (StepKind.PREFILL, StepKind.DECODE, StepKind.DECODE, StepKind.DECODE):
        plans = group.step()
        assert kinds(plans) == {kind}
        assert [len(plan.seq_ids) for plan in plans] == [1, 0]
    assert all(plan.step == -1 for plan in group.step())
    assert len(group.ranks[0].outputs[0]) == 4


@pytest.mark.parametrize("arrives_after", [0, 1, 30, 69, 70, 98, 99, 100, 150])
def test_an_isolated_rank_waits_at_most_100_decode_steps(arrives_after: int) -> None:
    """Rank 1 decodes for ever and wants nothing; rank 0's prompt comes through at the ANY points only."""
    group = group_of(2, num_blocks=129)
    group.ranks[1].add(0, [1, 2, 3], 390)
    group.step()
    for _ in range(arrives_after):
        assert kinds(group.step()) == {StepKind.DECODE}
    group.ranks[0].add(0, [4, 5, 6], 4)
    waited = 0
    while kinds(group.step()) != {StepKind.PREFILL}:
        waited += 1
        assert waited <= 100
    assert waited == (-arrives_after) % 100 or (arrives_after == 0 and waited == 100)
    assert len(group.ranks[0].outputs[0]) == 1


def test_when_all_want_it_the_all_point_is_enough() -> None:
    group = group_of(2)
    for rank in group.ranks:
        rank.add(0, [1, 2, 3], 100)
    group.step()
    group.step()
    for rank in group.ranks:
        rank.add(1, [4, 5, 6], 4)
    waited = 0
    while kinds(group.step()) != {StepKind.PREFILL}:
        waited += 1
    assert waited == 69


def test_a_prompt_step_resets_the_count() -> None:
    group = group_of(2)
    group.ranks[0].add(0, [1, 2, 3], 50)
    group.step()
    for expected in (1, 2, 3):
        group.step()
        assert [rank.cadence.decode_step for rank in group.ranks] == [expected] * 2
    group.ranks[1].cadence.decode_step = group.ranks[0].cadence.decode_step = 100
    group.ranks[1].add(0, [1], 2)
    group.step()
    assert [rank.cadence.decode_step for rank in group.ranks] == [0, 0]


def test_the_second_vote_decodes_when_nobody_could_schedule_a_prompt() -> None:
    """The wish is a probe; here it is wrong on purpose, as it may be after a race for blocks."""
    group = group_of(2, max_seqs=1)
    group.ranks[0].add(0, [1, 2, 3], 20)
    group.step()
    group.ranks[0].add(1, [4, 5, 6], 4)  # running is full, waiting is not empty
    for rank in group.ranks:
        ballot = rank.cadence._ballot
        rank.cadence._ballot = lambda core, ballot=ballot: Ballot(True, ballot(core).decodes, ballot(core).decode_step)
        rank.cadence.decode_step = 70
    votes = group.num_votes
    assert kinds(group.step()) == {StepKind.DECODE}
    assert group.num_votes - votes == 2
    assert group.ranks[0].cadence.decode_step == 71


def test_a_dead_head_does_not_block_the_all_vote() -> None:
    group = group_of(2)
    for rank in group.ranks:
        rank.add(0, [1, 2, 3], 100)
    group.step()
    group.ranks[0].add(1, [0] * 500, 4)  # can never be served
    for rank in group.ranks:
        rank.add(2, [7, 8], 4)
    while kinds(group.step()) != {StepKind.PREFILL}:
        assert group.ranks[0].cadence.decode_step <= 70
    assert group.ranks[0].ignored == {1: 0}


def test_kv_pressure_ends_the_wish() -> None:
    core = Scheduler(num_blocks=11, block_size=4, max_model_len=64, role=int(Role.NORMAL), token_budget=64)
    rank = Rank(0, 1, INTERVALS)
    rank.core, cadence = core, PhaseVoted(kv_limit=0.5)
    rank.add(0, list(range(20)), 4)
    rank.commit(cadence.plan(core))
    assert core.num_used_blocks == 5
    rank.add(1, [1, 2], 2)
    assert cadence._ballot(core).wants_prompt  # half of ten is not more than half
    rank.commit(cadence.plan(core))
    assert core.num_used_blocks > 5
    assert not cadence._ballot(core).wants_prompt


def test_ranks_out_of_step_are_told() -> None:
    group = group_of(2)
    group.ranks[0].add(0, [1, 2, 3], 20)
    group.step()
    group.ranks[1].cadence.decode_step = 5
    with pytest.raises(GroupBroken, match="out of step"):
        group.step()


def test_the_least_time_budget_counts() -> None:
    size = 2
    settings = {"prefill_cost": (0.0, 10.0, 0.0)}
    group = Group([Rank(i, size, INTERVALS | {"time_budget_ns": 100 - 40 * i}, **settings) for i in range(size)])
    for rank in group.ranks:
        rank.add(0, list(range(12)), 4)
    assert [plan.num_scheduled.tolist() for plan in group.step()] == [[6], [6]]


def test_one_kind_engines_keep_to_it() -> None:
    prompt = Rank(0, 1, INTERVALS, role=int(Role.PROMPT))
    prompt.add(0, [1, 2, 3], 4)
    cadence = OneKind(StepKind.PREFILL)
    plan = cadence.plan(prompt.core)
    assert plan.num_scheduled.tolist() == [3]
    prompt.commit(plan)
    assert cadence.plan(prompt.core).step == -1
    assert prompt.core.prompted_ids() == [0]


def run_random_schedule(random: Random) -> int:
    """Arrivals on random ranks, small pools, short intervals; to the end of every sequence. Returns steps."""
    intervals = {"all_interval": random.randint(1, 5), "any_interval": random.randint(1, 7)}
    settings = {"num_blocks": random.randint(6, 16), "max_model_len": 24, "token_budget": random.randint(4, 16)}
    settings["max_seqs"] = random.randint(1, 4)
    settings["full_sequence_must_fit"] = random.random() < 0.5
    settings["stop_preempted"] = random.random() < 0.2
    group = group_of(random.randint(1, 4), intervals, **settings)
    arrivals = [random.choice(group.ranks) for _ in range(random.randint(1, 6))]
    steps = 0
    while arrivals or group.num_unfinished:
        while arrivals and (random.random() < 0.4 or not group.num_unfinished):
            rank = arrivals.pop()
            prompt = [random.randrange(50) for _ in range(random.randint(1, 14))]
            rank.add(len(rank.prompts), prompt, random.randint(1, 8))
        group.step()
        steps += 1
        assert steps < 400, "no end in sight"
    for rank in group.ranks:
        rank.check_outputs()
        assert rank.core.num_used_blocks == 0
        assert all(rank.outputs[seq_id] or seq_id in rank.ignored for seq_id in rank.prompts)
    return steps


@pytest.mark.parametrize("count", [2000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_random_schedules_without_deadlock(count: int) -> None:
    random = Random(7)
    assert sum(run_random_schedule(random) for _ in range(count)) > 10 * count

"""Expert placement: the worked example, brute force on small cases, moves, swaps and statistics."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from headrace.contract.errors import ConfigError
from headrace.parallel.eplb.placement import (
    from_physical,
    imbalance,
    num_spares,
    place,
    replicate,
    summed_maximum,
    without_own,
)
from headrace.parallel.eplb.shuffle import keep_slots, moves
from headrace.parallel.eplb.stats import DECODE, PREFILL, ExpertStats, RebalanceConfig
from headrace.parallel.eplb.swaps import improve


def random_loads(seed: int, history: int, experts: int) -> np.ndarray:
    return np.random.default_rng(seed).pareto(1.2, (history, experts)) * 100


def test_d_e2() -> None:
    loads = np.array([[100, 20, 20]])
    assert replicate(loads.astype(float), 4).tolist() == [2, 1, 1]  # the spare goes to E0
    placement = place(loads, num_slots=4, num_ranks=2)
    assert placement.physical_to_logical.tolist() == [0, 1, 0, 2]
    assert placement.logical_to_physical.tolist() == [[0, 2], [1, -1], [3, -1]]
    assert placement.num_replicas.tolist() == [2, 1, 1]
    assert placement.rank_loads(loads.astype(float)).tolist() == [[70, 70]]
    assert imbalance(placement, loads.astype(float)) == 1.0


def test_spares_are_rounded_up_to_the_group() -> None:
    assert num_spares(384, 64, least=1) == 64
    assert (384 + num_spares(384, 64, least=1)) // 64 == 7
    assert num_spares(384, 64, least=0) == 0
    assert num_spares(8, 3, least=0) == 1
    assert (PREFILL.spares_per_rank, PREFILL.window, PREFILL.interval) == (4, 100, 1_000)
    assert (DECODE.spares_per_rank, DECODE.window, DECODE.interval) == (1, 1_000, 10_000)


def test_history_counts_not_only_the_total() -> None:
    """E0 and E1 have equal totals; but E0's load came at once, so a copy of it lowers the summed maximum more."""
    loads = np.array([[90.0, 30, 1], [0, 30, 1], [0, 30, 1]])
    assert replicate(loads, 4).tolist() == [2, 1, 1]


def test_equally_hot_experts_get_the_spares_before_cold_ones() -> None:
    assert replicate(np.array([[1.0, 50, 50, 2]]), 6).tolist() == [1, 2, 2, 1]


@pytest.mark.parametrize("seed", range(30))
def test_each_spare_is_the_best_single_choice(seed: int) -> None:
    loads = random_loads(seed, 1 + seed % 4, 6)
    replicas = np.ones(6)
    for slots in range(7, 12):
        options = [(loads / (replicas + np.eye(6)[e])).max(axis=1).sum() for e in range(6)]
        chosen = replicate(loads, slots)
        assert (loads / chosen).max(axis=1).sum() == pytest.approx(min(options))
        assert (chosen - replicas).sum() == 1
        replicas = chosen.astype(float)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("by_dot_product", [False, True])
def test_a_placement_holds_every_expert_and_fills_every_rank(seed: int, by_dot_product: bool) -> None:
    loads = random_loads(seed, 5, 24)
    placement = place(loads, 32, 8, by_dot_product=by_dot_product)
    assert placement.slots_per_rank == 4
    assert placement.num_replicas.sum() == 32
    assert placement.num_replicas.min() >= 1
    for expert, slots in enumerate(placement.logical_to_physical):
        held = slots[slots >= 0]
        assert len(held) == placement.num_replicas[expert]
        assert (placement.physical_to_logical[held] == expert).all()
        assert (slots[len(held) :] == -1).all()
    assert np.allclose(placement.rank_loads(loads).sum(axis=1), loads.sum(axis=1))
    naive = from_physical(np.concatenate([np.arange(24), np.arange(8)]), 24, 8)
    assert summed_maximum(placement, loads) < summed_maximum(naive, loads)


def test_the_greedy_choice_against_every_placement() -> None:
    """Small enough to try all: greedy comes within a quarter of the best."""
    for seed in range(20):
        loads = random_loads(seed, 2, 6)
        best = min(
            summed_maximum(from_physical(np.array(order), 6, 2), loads) for order in itertools.permutations(range(6))
        )
        assert summed_maximum(place(loads, 6, 2), loads) <= 1.25 * best


def test_greatest_of_the_others() -> None:
    values = np.array([[3.0, 1, 2], [5, 5, 1]])
    assert without_own(values).tolist() == [[2, 3, 3], [5, 5, 5]]
    assert without_own(np.array([[4.0]])).tolist() == [[0]]


@pytest.mark.parametrize(
    ("loads", "slots", "ranks", "field"),
    [
        (np.ones(4), 4, 2, "loads"),
        (-np.ones((1, 4)), 4, 2, "loads"),
        (np.full((1, 4), np.nan), 4, 2, "loads"),
        (np.ones((0, 4)), 4, 2, "loads"),
        (np.ones((1, 4)), 5, 2, "slots"),
        (np.ones((1, 4)), 2, 2, "slots"),
        (np.ones((1, 4)), 4, 0, "slots"),
    ],
)
def test_bad_input_is_named(loads: np.ndarray, slots: int, ranks: int, field: str) -> None:
    with pytest.raises(ConfigError, match=f"^{field}: "):
        place(loads, slots, ranks)


def test_no_load_at_all_is_a_placement_too() -> None:
    placement = place(np.zeros((3, 4)), 6, 2)
    assert placement.num_replicas.sum() == 6
    assert imbalance(placement, np.zeros((3, 4))) == 1.0


@pytest.mark.parametrize("seed", range(20))
def test_few_moves_never_make_it_worse_and_are_few(seed: int) -> None:
    before = place(random_loads(seed, 4, 16), 24, 4)
    loads = random_loads(seed + 100, 4, 16)
    costs = [summed_maximum(before, loads)]
    for max_moves in (0, 1, 2, 6, 12):
        after = improve(before, loads, max_moves)
        changed = int((after.physical_to_logical != before.physical_to_logical).sum())
        assert changed <= max_moves
        costs.append(summed_maximum(after, loads))
        assert after.num_replicas.min() >= 1
    assert costs == sorted(costs, reverse=True)
    assert costs[1] == costs[0]
    assert costs[-1] < costs[0]


def test_a_good_placement_is_left_alone() -> None:
    placement = place(np.array([[100, 20, 20]]), 4, 2)
    assert improve(placement, np.array([[100, 20, 20]]), 8) is placement


def test_a_swap_is_the_best_of_all_swaps() -> None:
    for seed in range(20):
        before = from_physical(np.arange(6), 6, 3)
        loads = random_loads(seed, 3, 6)
        slowest = int(before.rank_loads(loads).sum(axis=0).argmax())
        options = [summed_maximum(before, loads)]
        for i, j in itertools.combinations(range(6), 2):
            if (i // 2 == slowest) != (j // 2 == slowest):
                slots = np.arange(6)
                slots[[i, j]] = slots[[j, i]]
                options.append(summed_maximum(from_physical(slots, 6, 3), loads))
        assert summed_maximum(improve(before, loads, 2), loads) == pytest.approx(min(options))


def test_experts_that_stay_on_a_rank_keep_their_slot() -> None:
    old = from_physical(np.array([0, 1, 2, 3, 4, 0]), 5, 2)
    new = from_physical(np.array([2, 4, 0, 1, 3, 0]), 5, 2)
    kept = keep_slots(old, new)
    assert kept.physical_to_logical.tolist() == [0, 4, 2, 3, 1, 0]
    assert [(move.source, move.target) for move in moves(old, kept)] == [(4, 1), (1, 4)]


@pytest.mark.parametrize("seed", range(10))
def test_moves_bring_every_slot_its_expert(seed: int) -> None:
    old, new = (place(random_loads(s, 3, 12), 20, 5) for s in (seed, seed + 50))
    kept = keep_slots(old, new)
    assert sorted(kept.physical_to_logical) == sorted(new.physical_to_logical)
    held = old.physical_to_logical.copy()
    for move in moves(old, kept):
        held[move.target] = old.physical_to_logical[move.source]
    assert (held == kept.physical_to_logical).all()
    changed = (old.physical_to_logical != kept.physical_to_logical).sum()
    assert changed <= (old.physical_to_logical != new.physical_to_logical).sum()
    assert len(moves(old, kept)) == changed


def test_statistics_keep_a_window_and_an_interval() -> None:
    stats = ExpertStats(1, 2, RebalanceConfig(spares_per_rank=1, window=4, interval=6))
    due = []
    for step in range(12):
        stats.add(np.array([[step, 1]]))
        due.append(stats.due)
        if step == 1:
            assert stats.history(1).tolist() == [[[0 + 1, 2]]]
    assert [step for step, flag in enumerate(due) if flag] == [5, 11]
    assert stats.history(4)[:, 0, 0].tolist() == [8, 9, 10, 11]
    assert stats.history(2)[:, 0, 0].tolist() == [8 + 9, 10 + 11]
    with pytest.raises(ConfigError, match=r"^experts: "):
        ExpertStats(0, 2, DECODE)

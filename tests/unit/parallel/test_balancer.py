"""When and where experts move: one layer between two steps, the same on every rank, and only for a gain."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from headrace.parallel.eplb.balancer import BALANCE_STEPS, Balancer, Change, ExpertShare
from headrace.parallel.eplb.stats import RebalanceConfig
from headrace.parallel.exchange import LocalExchange

LAYERS, EXPERTS = 3, 6


def balancers(size: int, config: RebalanceConfig | None) -> list[Balancer]:
    exchange = LocalExchange(size, 60.0)
    first = [ExpertShare(0, size, 2).placement(EXPERTS)] * LAYERS
    return [Balancer(exchange.member(rank), first, EXPERTS, config) for rank in range(size)]


def in_step(ranks: list[Balancer], counts: list[np.ndarray]) -> list[Change | None]:
    def step(rank: int) -> Change | None:
        change = ranks[rank].next_change()
        ranks[rank].count(counts[rank], int(counts[rank].sum()))
        return change

    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(step, range(len(ranks))))


def test_shares_are_every_expert_once_and_the_first_ones_again() -> None:
    shares = [ExpertShare(rank, 4, 1).held(6) for rank in range(4)]
    assert shares == [[0, 1], [2, 3], [4, 5], [0, 1]]
    assert ExpertShare(1, 2, 0).held(6) == [3, 4, 5]


def test_one_layer_moves_at_a_time_and_all_ranks_agree() -> None:
    ranks = balancers(2, RebalanceConfig(1, 2, 2))
    hot = np.zeros((LAYERS, EXPERTS), dtype=np.int64)
    hot[0, :3], hot[2, 1] = 50, 90  # layer 1 has no load at all: nothing to gain there
    cold = np.zeros_like(hot)
    seen = [in_step(ranks, [hot, cold]) for _ in range(2)]
    assert seen == [[None, None]] * 2
    changes = [in_step(ranks, [hot, cold]) for _ in range(3)]
    assert [None if own is None else own.layer for own, _ in changes] == [0, None, None]
    own, other = changes[0]
    assert own is not None
    assert other is not None
    assert own.moves == other.moves
    assert (own.placement.physical_to_logical == other.placement.physical_to_logical).all()


def test_a_spread_load_is_left_alone() -> None:
    ranks = balancers(2, RebalanceConfig(1, 1, 1))
    even = np.ones((LAYERS, EXPERTS), dtype=np.int64)
    even[:, :2] = 2  # the two that have copies
    assert [in_step(ranks, [even, even]) for _ in range(6)] == [[None, None]] * 6


def test_balance_is_slowest_over_mean_of_busy_steps() -> None:
    ranks = balancers(2, None)
    for step in range(BALANCE_STEPS):
        rows = [np.full((1, 1), 3), np.full((1, 1), 1)] if step % 2 else [np.zeros((1, 1), int)] * 2
        assert in_step(ranks, rows) == [None, None]
        assert ranks[0].balance == (0.0 if step < BALANCE_STEPS - 1 else 1.5)
    assert ranks[1].balance == pytest.approx(1.5)


def test_every_layer_has_its_turn_where_rounds_come_faster_than_layers() -> None:
    ranks = balancers(2, RebalanceConfig(1, 2, 2))
    hot = np.zeros((LAYERS, EXPERTS), dtype=np.int64)
    hot[:, 2:4] = 50  # both on the first rank alone
    changes = [in_step(ranks, [hot, np.zeros_like(hot)])[0] for _ in range(8)]
    assert {change.layer for change in changes if change is not None} == set(range(LAYERS))

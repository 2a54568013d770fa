"""Two settings in turns: the order of turns, the ratio within a round, and when a difference is claimed."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.config import resolve
from headrace.lab.bench.pairs import Pair, Pairs, halved
from headrace.lab.bench.stats import Spread, spread


def pair(*ratios: float) -> Pair:
    some = Spread(1, 1, 1, 1)
    return Pair(some, some, spread(ratios))


@pytest.mark.parametrize(
    ("ratios", "words"),
    [
        ((0.9, 1.1, 1.0, 1.0, 1.0), "no difference"),
        ((1.1, 1.2), "too few rounds"),
        ((1.1, 1.2, 1.1, 1.3, 1.01), "more"),
        ((0.9, 0.8, 0.99, 0.7, 0.9), "less"),
    ],
)
def test_a_difference_is_claimed_only_where_enough_rounds_agree(ratios: tuple[float, ...], words: str) -> None:
    assert pair(*ratios).verdict.startswith(words)


def test_turns_alternate_and_the_first_round_does_not_count() -> None:
    pairs: Any = Pairs(resolve({}), resolve({}))
    pairs.first, pairs.second = "a", "b"
    order: list[tuple[str, int]] = []

    def measure(which: str, number: int) -> float:
        order.append((which, number))
        return {"a": 10.0, "b": 20.0}[which] * (1 if number >= 0 else 1000) * (number + 2)

    measured = pairs.measure(measure, 3)
    assert [which for which, _ in order] == ["a", "b", "b", "a", "a", "b", "b", "a"]
    assert [number for _, number in order] == [-1, -1, 0, 0, 1, 1, 2, 2]
    assert measured.ratio == Spread(2.0, 2.0, 2.0, 3)
    assert measured.first == spread([20.0, 30.0, 40.0])


def test_a_second_engine_has_room() -> None:
    assert halved(resolve({"kv_memory_fraction": 0.5})).cache.kv_memory_fraction == 0.25
    fixed = resolve({"kv_memory": 1 << 20})
    assert halved(fixed) is fixed

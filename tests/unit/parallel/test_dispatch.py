"""Rows that travel to slots and back: over threads, over gloo, with ranks that have none, and the handle's rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor

from headrace.contract.errors import GroupBroken
from headrace.parallel.dispatch import combine, dispatch
from headrace.parallel.exchange import Exchange, LocalExchange
from headrace.parallel.gloo import GlooExchange

WAIT_S = 60.0


def local(size: int, _: Path) -> list[Exchange]:
    group = LocalExchange(size, WAIT_S)
    return [group.member(rank) for rank in range(size)]


def gloo(size: int, folder: Path) -> list[Exchange]:
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(lambda rank: GlooExchange(rank, size, f"file:{folder / 'meet'}", WAIT_S), range(size)))


Make = Callable[[int, Path], list[Exchange]]
KINDS = pytest.mark.parametrize("make", [local, gloo])


def at_once(ends: Sequence[Exchange], work: Callable[[Exchange], object]) -> list[object]:
    with ThreadPoolExecutor(len(ends)) as pool:
        return list(pool.map(work, ends))


@KINDS
@pytest.mark.parametrize("size", [1, 2, 3])
def test_every_copy_is_answered_by_its_slot(make: Make, size: int, tmp_path: Path) -> None:
    """A slot adds its number, weighted; rank 1 has no rows at all."""
    per_rank, width = 2, 5

    def work(end: Exchange) -> tuple[Tensor, Tensor]:
        torch.manual_seed(end.rank)
        tokens = 0 if end.rank == 1 else 7
        rows, weights = torch.randn(tokens, width), torch.rand(tokens, 3)
        slots = torch.randint(size * per_rank, (tokens, 3))
        handle = dispatch(end, rows, slots, weights, per_rank)
        assert bool((handle.slots < per_rank).all())
        answers = handle.rows + (handle.weights * (end.rank * per_rank + handle.slots)).unsqueeze(1)
        wanted = rows.unsqueeze(1) + (weights * slots).unsqueeze(2)
        return combine(end, handle, answers), wanted

    for found, wanted in at_once(make(size, tmp_path), work):  # type: ignore[misc]
        assert torch.equal(found, wanted)


@KINDS
def test_rows_go_where_they_are_sent_and_sums_are_everybodys(make: Make, tmp_path: Path) -> None:
    def work(end: Exchange) -> tuple[list[list[int]], list[int]]:
        parts = [torch.full((target, 1), 10 * end.rank + target, dtype=torch.uint8) for target in range(3)]
        got = [part.flatten().tolist() for part in end.rows(parts)]
        return got, end.total(torch.tensor([1, end.rank])).tolist()

    for rank, (got, total) in enumerate(at_once(make(3, tmp_path), work)):  # type: ignore[misc]
        assert got == [[10 * sender + rank] * rank for sender in range(3)]
        assert total == [3, 3]


def test_a_handle_is_for_one_answer() -> None:
    [end] = local(1, Path())
    handle = dispatch(end, torch.zeros(2, 3), torch.tensor([[0], [1]]), torch.ones(2, 1), 2)
    with pytest.raises(AssertionError, match="1 answers to 2 rows"):
        combine(end, handle, torch.zeros(1, 3))
    combine(end, handle, torch.zeros(2, 3))
    with pytest.raises(AssertionError, match="combined already"):
        combine(end, handle, torch.zeros(2, 3))


@KINDS
def test_who_leaves_is_missed(make: Make, tmp_path: Path) -> None:
    first, second = make(2, tmp_path)
    first.close()
    with pytest.raises(GroupBroken, match="rank 1 of 2"):
        second.rows([torch.zeros(1, 1), torch.zeros(1, 1)])

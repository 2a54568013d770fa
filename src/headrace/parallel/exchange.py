"""Exchanges inside a step: every rank hands every other one some rows and gets theirs, within a deadline.

``LocalExchange`` joins threads of one process, for tests and simulations; ``gloo.py`` joins processes. All ranks must
make the same calls in the same order, with rows of one width and type. A rank that does not come breaks the exchange
for all, and for good. Nothing here knows what the rows are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from headrace.contract.errors import GroupBroken

from .board import Board


class Exchange(Protocol):
    """One rank's end."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    def rows(self, parts: Sequence[Tensor], expected: Sequence[int] | None = None) -> list[Tensor]:
        """``parts[r]`` (n, width) goes to rank r; returns what each rank sent here. ``expected``: how many rows that
        is, where they are known; without it the ranks tell each other first. Raises GroupBroken."""
        ...

    def total(self, values: Tensor) -> Tensor:
        """The sum over all ranks of int64 ``values``, the same on each. Raises GroupBroken."""
        ...

    def close(self) -> None:
        """Leaves. Ranks that wait for this one get GroupBroken."""
        ...


class LocalExchange:
    """``size`` threads of this process. ``member(rank)`` gives each its end."""

    def __init__(self, size: int, timeout_s: float = 30.0) -> None:
        self.size = size
        self._board = Board[list[Tensor]](size, timeout_s)

    def member(self, rank: int) -> LocalEnd:
        return LocalEnd(self, rank)

    def swap(self, rank: int, parts: Sequence[Tensor]) -> list[Tensor]:
        return self._board.meet(rank, list(parts), lambda sent: [parts[rank].clone() for parts in sent])

    def leave(self) -> None:
        self._board.leave()


class LocalEnd:
    """One thread's end of a LocalExchange."""

    def __init__(self, exchange: LocalExchange, rank: int) -> None:
        self._exchange = exchange
        self.rank = rank
        self.size = exchange.size

    def rows(self, parts: Sequence[Tensor], expected: Sequence[int] | None = None) -> list[Tensor]:
        got = self._exchange.swap(self.rank, parts)
        if expected is not None and [len(part) for part in got] != list(expected):
            raise GroupBroken(f"rank {self.rank}: {[len(part) for part in got]} rows came, not {list(expected)}")
        return got

    def total(self, values: Tensor) -> Tensor:
        return torch.stack(self._exchange.swap(self.rank, [values] * self.size)).sum(dim=0)

    def close(self) -> None:
        self._exchange.leave()

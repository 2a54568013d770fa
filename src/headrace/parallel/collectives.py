"""Collectives that the host needs: the least of a few integers over all ranks of a group, within a deadline.

``LocalGroup`` joins threads of one process, for tests and simulations; ``gloo.py`` joins processes. All ranks must make
the same calls in the same order. A rank that does not come breaks the group for all: nobody waits for ever, and a
broken group is never used again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from headrace.contract.errors import GroupBroken

from .board import Board


class Collective(Protocol):
    """One rank's end of a group."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    def least(self, values: Sequence[int]) -> list[int]:
        """The least of each value over all ranks, the same answer on each. Raises GroupBroken."""
        ...

    def close(self) -> None:
        """Leaves the group. Ranks that still wait for this one get GroupBroken."""
        ...


class Alone:
    """A group of one: answers are one's own values."""

    rank = 0
    size = 1

    def least(self, values: Sequence[int]) -> list[int]:
        return list(values)

    def close(self) -> None:
        pass


class LocalGroup:
    """``size`` threads of this process. ``member(rank)`` gives each its end."""

    def __init__(self, size: int, timeout_s: float = 30.0) -> None:
        self.size = size
        self._board = Board[list[int]](size, timeout_s)

    def member(self, rank: int) -> LocalMember:
        return LocalMember(self, rank)

    def least(self, rank: int, values: Sequence[int]) -> list[int]:
        rows = self._board.meet(rank, list(values), list)
        if len({len(row) for row in rows}) != 1:
            raise GroupBroken(f"ranks voted on different questions: {[len(row) for row in rows]} values")
        return [min(column) for column in zip(*rows)]

    def leave(self) -> None:
        self._board.leave()


class LocalMember:
    """One thread's end of a LocalGroup."""

    def __init__(self, group: LocalGroup, rank: int) -> None:
        self._group = group
        self.rank = rank
        self.size = group.size

    def least(self, values: Sequence[int]) -> list[int]:
        return self._group.least(self.rank, values)

    def close(self) -> None:
        self._group.leave()

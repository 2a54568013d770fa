"""Collectives that the host needs: the least of a few integers over all ranks of a group, within a deadline.

``LocalGroup`` joins threads of one process, for tests and simulations; ``gloo.py`` joins processes. All ranks must make
the same calls in the same order. A rank that does not come breaks the group for all: nobody waits for ever, and a
broken group is never used again.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol

from headrace.contract.errors import GroupBroken


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
        self._timeout_s = timeout_s
        self._values: list[list[int]] = [[] for _ in range(size)]
        self._barrier = threading.Barrier(size)

    def member(self, rank: int) -> LocalMember:
        return LocalMember(self, rank)

    def least(self, rank: int, values: Sequence[int]) -> list[int]:
        self._values[rank] = list(values)
        self._meet(rank)
        rows = list(self._values)
        self._meet(rank)  # nobody may write the next round before all have read this one
        if len({len(row) for row in rows}) != 1:
            raise GroupBroken(f"ranks voted on different questions: {[len(row) for row in rows]} values")
        return [min(column) for column in zip(*rows)]

    def _meet(self, rank: int) -> None:
        try:
            self._barrier.wait(self._timeout_s)
        except threading.BrokenBarrierError as error:
            raise GroupBroken(
                f"rank {rank} of {self.size}: another rank left, or did not answer within {self._timeout_s:g} s"
            ) from error

    def leave(self) -> None:
        self._barrier.abort()


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

"""Where threads of one process meet: each puts something up, and when all have, each reads what is there.

Under the local exchange and the local group, which know what the things are. A thread that does not come breaks the
board for all, and for good; one that leaves breaks only meetings to come. (Python's barrier also breaks the one just
over, for who has yet to wake from it: a rank would fail a step earlier than the one that failed.)
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from headrace.contract.errors import GroupBroken

Thing = TypeVar("Thing")
Read = TypeVar("Read")


class Board(Generic[Thing]):
    """For ``size`` threads that make the same calls in the same order."""

    def __init__(self, size: int, timeout_s: float) -> None:
        self.size = size
        self._timeout_s = timeout_s
        self._things: list[Thing | None] = [None] * size
        self._changed = threading.Condition()
        self._num_waiting = 0
        self._turn = 0  # how often all have been there
        self._broken = False

    def meet(self, rank: int, thing: Thing, read: Callable[[list[Thing]], Read]) -> Read:
        """What ``read`` makes of the things of all, in the order of ranks; it must copy what it keeps, for the next
        round takes their places. Raises GroupBroken."""
        self._things[rank] = thing
        self._wait(rank)
        there = [one for one in self._things if one is not None]
        result = read(there)
        self._wait(rank)  # nobody may put up the next round before all have read this one
        return result

    def _wait(self, rank: int) -> None:
        """Until all are there."""
        with self._changed:
            if not self._broken and self._all_come():
                return
            self._break()
        raise GroupBroken(
            f"rank {rank} of {self.size}: another rank left, or did not answer within {self._timeout_s:g} s"
        )

    def _all_come(self) -> bool:
        turn = self._turn
        self._num_waiting += 1
        if self._num_waiting == self.size:
            self._num_waiting = 0
            self._turn += 1
            self._changed.notify_all()
        else:
            self._changed.wait_for(lambda: self._turn != turn or self._broken, self._timeout_s)
        return self._turn != turn

    def _break(self) -> None:
        self._broken = True
        self._changed.notify_all()

    def leave(self) -> None:
        """Whoever waits, or comes later, gets GroupBroken."""
        with self._changed:
            self._break()

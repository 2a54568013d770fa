"""Where threads of one process meet: what was over when somebody left is over for all."""

from __future__ import annotations

import threading

import pytest

from headrace.contract.errors import GroupBroken
from headrace.parallel.board import Board

DEADLINE_S = 30.0


def meet_and_leave() -> list[list[int]]:
    """What the other one was told of a meeting after which this one left at once."""
    board, told = Board[int](2, DEADLINE_S), list[list[int]]()
    other = threading.Thread(target=lambda: told.append(board.meet(0, 5, list)))
    other.start()
    assert board.meet(1, 6, list) == [5, 6]
    board.leave()
    other.join(DEADLINE_S)
    with pytest.raises(GroupBroken, match="rank 0 of 2: another rank left"):
        board.meet(0, 7, list)
    return told


def test_who_leaves_after_a_meeting_breaks_the_next_one_only() -> None:
    """The other one has mostly yet to wake when this one leaves."""
    assert all(meet_and_leave() == [[5, 6]] for _ in range(200))


def test_who_waits_for_somebody_that_leaves_is_told() -> None:
    board, failures, waits = Board[int](2, DEADLINE_S), list[GroupBroken](), threading.Event()

    def wait() -> None:
        waits.set()
        with pytest.raises(GroupBroken) as caught:
            board.meet(0, 5, list)
        failures.append(caught.value)

    waiter = threading.Thread(target=wait)
    waiter.start()
    assert waits.wait(DEADLINE_S)
    board.leave()
    waiter.join(DEADLINE_S)
    assert len(failures) == 1


def test_a_silent_one_breaks_the_board_for_good() -> None:
    board = Board[int](2, 0.01)
    for rank in (0, 1):
        with pytest.raises(GroupBroken, match=r"within 0\.01 s"):
            board.meet(rank, 5, list)

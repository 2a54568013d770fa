"""Threads that vote: answers, different questions, a member that leaves, a member that does not come."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from headrace.contract.errors import GroupBroken
from headrace.parallel.collectives import Alone, Collective, LocalGroup
from headrace.parallel.vote import Ballot, Tally, decode_any, encode_any


def run_members(group: LocalGroup, work: Callable[[Collective], object]) -> list[object]:
    results: list[object] = [None] * group.size

    def body(rank: int) -> None:
        try:
            results[rank] = work(group.member(rank))
        except GroupBroken as error:
            results[rank] = error

    threads = [threading.Thread(target=body, args=(rank,)) for rank in range(group.size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    return results


def test_many_rounds_of_many_threads() -> None:
    def work(member: Collective) -> list[list[int]]:
        return [member.least([member.rank + i, -member.rank, i]) for i in range(300)]

    results = run_members(LocalGroup(4), work)
    assert results == [[[i, -3, i] for i in range(300)]] * 4


def test_alone_answers_itself() -> None:
    assert Alone().least([3, -1]) == [3, -1]
    assert Alone().size == 1


def test_different_questions_are_an_error_for_all() -> None:
    results = run_members(LocalGroup(3, timeout_s=10), lambda member: member.least([0] * (1 + member.rank // 2)))
    assert all(isinstance(result, GroupBroken) and "different questions" in str(result) for result in results)


def test_who_leaves_breaks_the_group_at_once() -> None:
    def work(member: Collective) -> object:
        member.least([0])
        if member.rank == 1:
            member.close()
            return "left"
        return member.least([0])

    first, left, last = run_members(LocalGroup(3, timeout_s=3600), work)
    assert left == "left"
    for result in (first, last):
        assert isinstance(result, GroupBroken)
        assert "another rank left" in str(result)


def test_who_never_comes_breaks_the_group_at_the_deadline() -> None:
    group = LocalGroup(2, timeout_s=0.05)
    with pytest.raises(GroupBroken, match=r"rank 0 of 2: .* within 0\.05 s"):
        group.member(0).least([1])
    with pytest.raises(GroupBroken):  # for good
        group.member(1).least([1])


def test_ballots_answer_all_and_any() -> None:
    def tally(*ballots: Ballot) -> Tally:
        return Tally.decode([min(column) for column in zip(*(ballot.encode() for ballot in ballots))])

    yes, no = Ballot(True, True, 3, 500), Ballot(False, False, 3)
    assert tally(yes, yes) == Tally(True, True, True, 500)
    assert tally(yes, no) == Tally(False, True, True, 500)
    assert tally(no, no) == Tally(False, False, False, 0)
    with pytest.raises(GroupBroken, match="3 to 4 decode steps"):
        tally(yes, Ballot(True, True, 4))
    assert decode_any([min(a, b) for a, b in zip(encode_any(True), encode_any(False))])
    assert not decode_any(encode_any(False))

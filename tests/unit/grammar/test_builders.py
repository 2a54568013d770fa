"""Threads that compile: those that are stuck are replaced, what nobody waits for never begins."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from headrace.grammar.builders import STACK_BYTES, Builders, Job

DEADLINE_S = 60.0


class Stuck:
    """A job that says when it began and goes on until it is let go."""

    def __init__(self) -> None:
        self.began, self.go = threading.Event(), threading.Event()

    def __call__(self) -> str:
        self.began.set()
        assert self.go.wait(DEADLINE_S)
        return "late"


@pytest.fixture
def stuck() -> Iterator[list[Stuck]]:
    made = [Stuck() for _ in range(4)]
    yield made
    for one in made:
        one.go.set()


def begin(builders: Builders, calls: list[Stuck]) -> list[Job]:
    jobs = [builders.submit(call) for call in calls]
    assert all(call.began.wait(DEADLINE_S) for call in calls)
    return jobs


def test_a_forsaken_job_gives_its_place_to_the_next(stuck: list[Stuck]) -> None:
    builders = Builders(threads=2, most=4)
    jobs = begin(builders, stuck[:2])
    waiting = builders.submit(lambda: "done")
    assert not waiting.future.done()
    builders.forsake(jobs[0])
    builders.forsake(jobs[0])
    assert waiting.future.result(DEADLINE_S) == "done"


def test_those_left_behind_are_bounded_and_come_back_when_they_end(stuck: list[Stuck]) -> None:
    builders = Builders(threads=2, most=4)
    for pair in (stuck[:2], stuck[2:]):
        for job in begin(builders, pair):
            builders.forsake(job)
    waiting = builders.submit(lambda: "done")
    assert builders._running == 0
    assert builders._forsaken == 4
    assert not waiting.future.done()
    stuck[0].go.set()
    assert waiting.future.result(DEADLINE_S) == "done"


def test_what_nobody_waits_for_never_begins(stuck: list[Stuck]) -> None:
    builders = Builders(threads=1, most=1)
    [first] = begin(builders, stuck[:1])
    second, third = builders.submit(stuck[1]), builders.submit(lambda: "third")
    builders.forsake(second)
    stuck[0].go.set()
    assert third.future.result(DEADLINE_S) == "third"
    assert second.future.cancelled()
    assert not stuck[1].began.is_set()
    assert first.future.result() == "late"


def test_an_end_leaves_what_waits_undone_and_waits_for_nothing(stuck: list[Stuck]) -> None:
    builders = Builders(threads=1, most=1)
    begin(builders, stuck[:1])
    waiting = builders.submit(lambda: "never")
    builders.close()
    assert waiting.future.cancelled()


def test_what_a_job_raises_is_its_own() -> None:
    builders = Builders(threads=1, most=1)
    failed, fine = builders.submit(lambda: {}["missing"]), builders.submit(lambda: "fine")
    assert fine.future.result(DEADLINE_S) == "fine"
    with pytest.raises(KeyError):
        failed.future.result(DEADLINE_S)


def test_an_owner_has_half_of_the_threads_and_half_of_those_left_behind(stuck: list[Stuck]) -> None:
    builders = Builders(threads=2, most=4)
    first = builders.submit(stuck[0], "a")
    assert stuck[0].began.wait(DEADLINE_S)
    second = builders.submit(stuck[1], "a")
    assert builders.submit(lambda: "done", "b").future.result(DEADLINE_S) == "done"
    assert not stuck[1].began.is_set()
    builders.forsake(first)
    assert stuck[1].began.wait(DEADLINE_S)
    builders.forsake(second)
    third = builders.submit(stuck[2], "a")  # two of its threads are left behind already
    assert builders.submit(lambda: "done", "b").future.result(DEADLINE_S) == "done"
    assert builders.submit(lambda: "done").future.result(DEADLINE_S) == "done"
    assert not stuck[2].began.is_set()
    stuck[0].go.set()
    assert stuck[2].began.wait(DEADLINE_S)
    stuck[2].go.set()
    assert third.future.result(DEADLINE_S) == "late"


def test_without_owners_all_threads_are_everybodys(stuck: list[Stuck]) -> None:
    begin(Builders(threads=2, most=4), stuck[:2])


def test_what_goes_into_itself_very_often_has_the_stack_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the usual one a schema whose definitions refer on some ten thousand times ends the process."""
    sizes = list[int]()

    def stack_size(size: int) -> int:
        sizes.append(size)
        return 5

    monkeypatch.setattr("headrace.grammar.builders.threading.stack_size", stack_size)
    assert Builders(1, 1).submit(lambda: "made").future.result(DEADLINE_S) == "made"
    assert sizes == [STACK_BYTES, 5]  # and other threads have what they had

"""Large work on one thread: owners take turns, failures are their own, an end leaves nobody waiting."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

import pytest

from headrace.api.http.lane import Lane

DEADLINE_S = 60.0


def blocked(lane: Lane) -> tuple[threading.Event, Future[Any]]:
    """The lane at work on something that goes on until it is let go."""
    began, go = threading.Event(), threading.Event()

    def work() -> bool:
        began.set()
        return go.wait(DEADLINE_S)

    future = lane.submit("first", work)
    assert began.wait(DEADLINE_S)
    return go, future


def test_owners_take_turns_and_each_in_its_own_order() -> None:
    lane, done = Lane(), list[str]()
    go, _ = blocked(lane)
    work = [("a", "a1"), ("a", "a2"), ("a", "a3"), ("b", "b1"), ("c", "c1"), ("b", "b2")]
    futures = [lane.submit(owner, lambda name=name: done.append(name)) for owner, name in work]  # type: ignore[misc]
    go.set()
    for future in futures:
        future.result(DEADLINE_S)
    assert done == ["a1", "b1", "c1", "a2", "b2", "a3"]
    lane.close()


def test_what_was_given_up_is_left_out_and_what_fails_tells_its_owner() -> None:
    lane, done = Lane(), list[str]()
    go, _ = blocked(lane)
    given_up = lane.submit("a", lambda: done.append("given up"))
    failing, fine = lane.submit("a", lambda: {}["missing"]), lane.submit("a", lambda: done.append("fine"))
    assert given_up.cancel()
    go.set()
    fine.result(DEADLINE_S)
    assert done == ["fine"]
    with pytest.raises(KeyError):
        failing.result(DEADLINE_S)
    lane.close()


def test_an_end_drops_what_waits() -> None:
    lane = Lane()
    go, first = blocked(lane)
    waiting = lane.submit("a", lambda: None)
    lane.close()
    assert waiting.cancelled()
    go.set()
    assert first.result(DEADLINE_S)

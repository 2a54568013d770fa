"""Profiles across processes: one at a time, answers to whoever asked, an end to every wait."""

from __future__ import annotations

import threading

import pytest

from headrace.contract.errors import EngineDead
from headrace.engine import profiling
from headrace.engine.messages import Profile, Profiled
from headrace.engine.profiling import Profiler, ProfileWaits

DEADLINE_S = 30.0


def test_a_second_profile_is_refused_while_one_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    going, done = threading.Event(), threading.Event()

    def sample(seconds: float) -> dict[str, int]:
        assert going.wait(DEADLINE_S)
        return {"main;f": int(seconds)}

    monkeypatch.setattr(profiling, "sample", sample)
    profiler = Profiler(done.set)
    profiler.begin(Profile(7, 3.0))
    profiler.begin(Profile(8, 1.0))
    [busy] = profiler.due()
    assert (busy.number, busy.stacks) == (8, {})
    assert busy.error is not None
    going.set()
    assert done.wait(DEADLINE_S)
    assert profiler.due() == [Profiled(7, {"main;f": 3})]
    assert profiler.due() == []


def test_answers_go_to_who_asked_and_late_ones_nowhere() -> None:
    waits = ProfileWaits()

    def answer(asked: Profile) -> None:
        waits.take(Profiled(asked.number + 1, {"another": 1}))
        waits.take(Profiled(asked.number, {"main;f": 2}))
        waits.take(Profiled(asked.number, {"again": 1}))

    assert waits.ask(1.0, answer) == {"main;f": 2}
    with pytest.raises(EngineDead, match="already"):
        waits.ask(1.0, lambda asked: waits.take(Profiled(asked.number, {}, "one is being taken already")))
    with pytest.raises(EngineDead, match="it died"):
        waits.ask(1.0, lambda _: waits.fail_all("it died"))


def test_a_silent_engine_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "SLACK_S", 0.0)
    with pytest.raises(EngineDead, match="no profile within"):
        ProfileWaits().ask(0.01, lambda _: None)

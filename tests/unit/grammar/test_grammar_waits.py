"""Requests that wait for their constraint: whose time is up or who has gone leaves the builders to others."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.contract.errors import HeadraceError, InvalidRequest, QueueFull
from headrace.contract.request import Request, SamplingParams, StructuredOutputs
from headrace.engine.book import Book
from headrace.engine.grammar_waits import GrammarWaits
from headrace.grammar.backend import Vocabulary
from headrace.grammar.compiler import GrammarPool

DEADLINE_S = 60.0


class Waits:
    """Waits over one builder thread; what is asked as "stuck" compiles until the test is over."""

    def __init__(self) -> None:
        self.now, self.began, self.over, self.woken = 0.0, threading.Event(), threading.Event(), threading.Event()
        self.compiled: list[str | None] = []
        self.pool = GrammarPool(
            lambda: Vocabulary([], ()), threads=1, timeout_s=5.0, open_backend=self._open, clock=lambda: self.now
        )
        self.all, self._book = GrammarWaits(self.pool, self.woken.set), Book()

    def _open(self, _vocabulary: Vocabulary) -> Any:
        return SimpleNamespace(compile=self._compile, num_bytes=len)

    def _compile(self, wanted: StructuredOutputs) -> str:
        self.compiled.append(wanted.regex)
        if wanted.regex == "stuck":
            self.began.set()
            assert self.over.wait(DEADLINE_S)
        return wanted.regex or ""

    def start(self, regex: str) -> Any:
        wanted = StructuredOutputs(regex=regex)
        sampling = SamplingParams(structured_outputs=wanted)
        entry = self._book.open(Request(request_id=regex, prompt_token_ids=[1], sampling=sampling))
        self.all.start(entry)
        return entry

    def stick(self, times: int = 1) -> list[Any]:
        """That many requests that hold a thread each; all but the last have gone."""
        entries = []
        for _ in range(times):
            self.began.clear()
            for entry in entries[-1:]:
                self.all.cancel(entry)
            entries.append(self.start("stuck"))
            assert self.began.wait(DEADLINE_S)
        return entries

    def next_finished(self, count: int = 1) -> list[Any]:
        """The next that are told of, that many; waits for them."""
        told = self.all.finished()
        while len(told) < count:
            assert self.woken.wait(DEADLINE_S)
            self.woken.clear()
            told += self.all.finished()
        return told

    def await_all_compiled(self) -> None:
        """Also what nobody waits for."""
        deadline = time.monotonic() + DEADLINE_S
        while self.pool._under_way:
            assert time.monotonic() < deadline
            time.sleep(0.002)

    def outcome(self) -> HeadraceError | None:
        [(_, error)] = self.all.finished()
        return error


@pytest.fixture
def waits() -> Any:
    made = Waits()
    yield made
    made.over.set()
    made.all.close()


def test_who_has_gone_keeps_no_builder(waits: Waits) -> None:
    [gone] = waits.stick()
    waits.start("fine")
    assert waits.all.finished() == []
    assert waits.all.cancel(gone)
    assert not waits.all.cancel(gone)
    assert waits.woken.wait(DEADLINE_S)
    [(entry, error)] = waits.all.finished()
    assert (entry.grammar.compiled, error) == ("fine", None)


def test_whose_time_is_up_keeps_no_builder_and_is_told_why(waits: Waits) -> None:
    waits.stick()
    waits.now = 6.0
    late = waits.outcome()
    assert isinstance(late, InvalidRequest)
    assert "too long to compile" in str(late)
    waits.start("fine")
    assert waits.woken.wait(DEADLINE_S)
    assert waits.outcome() is None


def test_equal_constraints_wait_for_one_builder_and_leave_it_with_the_last(waits: Waits) -> None:
    """Four choices of one request: their threads would be all that there are."""
    entries = [waits.start("stuck") for _ in range(4)]
    assert waits.began.wait(DEADLINE_S)
    for entry in entries[:3]:
        assert waits.all.cancel(entry)
    waits.start("fine")
    assert waits.all.finished() == []
    waits.over.set()
    told = waits.next_finished(2)
    assert [(entry.grammar.compiled, error) for entry, error in told] == [("stuck", None), ("fine", None)]
    assert waits.compiled == ["stuck", "fine"]


def test_what_is_known_to_take_too_long_is_refused_at_once_while_it_runs(waits: Waits) -> None:
    waits.stick()
    also = waits.start("stuck")
    waits.now = 6.0
    both = waits.all.finished()
    assert [str(error) for _, error in both] == ["structured_outputs: took too long to compile: make it simpler"] * 2
    again = waits.start("stuck")
    [(entry, error)] = waits.all.finished()
    assert (entry, str(error)) == (again, str(both[0][1]))
    assert not waits.all.cancel(also)
    assert waits.compiled == ["stuck"]
    waits.over.set()
    waits.start("fine")
    waits.next_finished()
    waits.await_all_compiled()
    waits.start("stuck")  # it was compiled in the end, and kept
    [(entry, error)] = waits.next_finished()
    assert (entry.grammar.compiled, error) == ("stuck", None)
    assert waits.compiled == ["stuck", "fine"]


def test_who_never_had_a_builder_is_not_blamed(waits: Waits) -> None:
    """Four threads stuck for one that may be waited for: that is all there are."""
    *_, last = waits.stick(4)
    waits.all.cancel(last)
    waits.start("fine")
    waits.now = 100.0
    late = waits.outcome()
    assert isinstance(late, QueueFull)
    assert "busy" in str(late)

"""Matchers that follow a sequence forwards and backwards; pools that compile. Over a backend of our own."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.contract.errors import InvalidRequest
from headrace.contract.request import SamplingParams, StructuredOutputs
from headrace.grammar.backend import Vocabulary
from headrace.grammar.compiler import Grammar, GrammarPool
from headrace.grammar.mask import allowed, empty_words
from headrace.grammar.matching import BURST_S, TOKEN_S, GrammarError, GrammarTooSlow, SequenceMatch


class Rising:
    """A grammar of ids that rise: each may be followed by larger ones only."""

    def __init__(self) -> None:
        self.stack = [-1]
        self.ended = False

    def accept(self, token: int) -> bool:
        if token <= self.stack[-1]:
            return False
        self.stack.append(token)
        return True

    def rollback(self, count: int) -> None:
        assert 0 < count < len(self.stack)
        del self.stack[-count:]

    def fill(self, words: np.ndarray) -> None:
        for token in range(self.stack[-1] + 1, len(words) * 32):
            words[token // 32] |= np.int32(np.uint32(1 << (token % 32)).view(np.int32))


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class RisingBackend:
    """``gate``: where the compilation of "slow" waits; it says so first."""

    gate, waits = threading.Event(), threading.Event()

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.opened = vocabulary
        self.compiled: list[str | None] = []

    def compile(self, wanted: StructuredOutputs) -> Any:
        self.compiled.append(wanted.regex)
        if wanted.regex == "slow":
            self.waits.set()
            assert self.gate.wait(60)
        if wanted.regex == "bad":
            raise InvalidRequest(wanted.field, "is bad")
        return wanted

    def num_bytes(self, compiled: Any) -> int:
        return len(compiled.regex) * 1_000_000

    def matcher(self, compiled: Any) -> Any:  # noqa: ARG002  # the backend's shape
        return Rising()


def match() -> SequenceMatch:
    return SequenceMatch(Grammar(RisingBackend(Vocabulary([], ())), None))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(st.integers(0, 63), unique=True, max_size=8).map(sorted), max_size=12))
def test_wherever_a_sequence_jumps_its_matcher_is_where_a_fresh_one_would_be(histories: list[list[int]]) -> None:
    followed = match()
    for outputs in histories:
        followed.follow(np.array(outputs, dtype=np.int32))
        fresh = match()
        fresh.follow(outputs)
        mine, theirs = empty_words(64), empty_words(64)
        assert followed.fill(mine) == fresh.fill(theirs)
        assert (mine == theirs).all()


def test_a_token_that_does_not_fit_is_named() -> None:
    followed = match()
    followed.follow([3, 5])
    with pytest.raises(GrammarError, match=r"token 4 \(output 2\)"):
        followed.follow([3, 5, 4])
    followed.follow([3, 5, 9])  # and nothing was taken of it


@pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, 100])
def test_masks_have_one_bit_per_id(vocab_size: int) -> None:
    words = empty_words(vocab_size)
    for token in (0, vocab_size - 1, vocab_size // 2):
        words[token // 32] |= np.array(1 << (token % 32), dtype=np.uint32).view(np.int32)
    assert np.flatnonzero(allowed(words, vocab_size)).tolist() == sorted({0, vocab_size - 1, vocab_size // 2})


def pool(**settings: Any) -> GrammarPool:
    return GrammarPool(lambda: Vocabulary([b"a"], (0,)), open_backend=RisingBackend, **settings)


def test_a_pool_compiles_in_the_background_and_says_what_was_wrong() -> None:
    made = pool(threads=2)
    good, bad = (made.request(StructuredOutputs(regex=text)) for text in ("good", "bad"))
    grammar = good.future.result(20)
    assert grammar.backend.opened == Vocabulary([b"a"], (0,))  # type: ignore[attr-defined]
    with pytest.raises(InvalidRequest, match="structured_outputs: is bad"):
        bad.future.result(20)
    made.close()


def test_a_compilation_that_takes_too_long_is_late_and_then_only() -> None:
    clock = Clock()
    made, patient_pool = pool(timeout_s=5.0, clock=clock), pool(timeout_s=1000.0, clock=clock)
    slow, patient = (one.request(StructuredOutputs(regex="slow")) for one in (made, patient_pool))
    assert RisingBackend.waits.wait(60)
    assert not slow.late
    clock.now = 66.0  # more than its five seconds, even had it not begun yet
    assert slow.late
    assert not patient.late
    RisingBackend.gate.set()
    for one in (slow, patient):
        one.future.result(60)
    made.close()
    patient_pool.close()


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (StructuredOutputs(), "exactly one"),
        (StructuredOutputs(regex="a", choice=["b"]), "exactly one"),
        (StructuredOutputs(json=False), "accepts nothing"),
        (StructuredOutputs(choice=[]), "at least one"),
        (StructuredOutputs(choice=["a", ""]), "no empty one"),
        (StructuredOutputs(grammar=" \n"), "empty"),
        (StructuredOutputs(json=""), "empty"),
        (StructuredOutputs(regex=""), "empty"),
    ],
)
def test_what_no_compiler_need_be_asked_about(wanted: StructuredOutputs, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        SamplingParams(structured_outputs=wanted).check(10)


@pytest.mark.parametrize("contradiction", [{"ignore_eos": True}, {"min_tokens": 1}])
def test_an_output_that_ends_by_itself_cannot_be_told_not_to(contradiction: dict[str, Any]) -> None:
    params = SamplingParams(structured_outputs=StructuredOutputs(json={}), **contradiction)
    with pytest.raises(InvalidRequest, match=next(iter(contradiction))):
        params.check(10)


def test_outputs_are_read_as_any_sequence() -> None:
    plain: Sequence[int] = [1, 2]
    followed = match()
    followed.follow(plain)
    followed.follow(np.array([1, 2, 3], dtype=np.int32))
    words = empty_words(32)
    assert followed.fill(words)
    assert np.flatnonzero(allowed(words, 32)).tolist() == list(range(4, 32))


class Slow(Rising):
    """Each of its calls takes as long as it is told."""

    def __init__(self, clock: Clock, call_s: float) -> None:
        super().__init__()
        self._clock, self._call_s = clock, call_s

    def accept(self, token: int) -> bool:
        self._clock.now += self._call_s
        return super().accept(token)

    def fill(self, words: np.ndarray) -> None:
        self._clock.now += self._call_s
        super().fill(words)


def follow_slowly(call_s: float, tokens: int) -> None:
    """As a step does: takes the tokens so far, asks what may follow."""
    clock = Clock()
    slow: Any = Slow(clock, call_s)
    followed = SequenceMatch(SimpleNamespace(matcher=lambda: slow), clock)  # type: ignore[arg-type]
    for count in range(tokens):
        followed.follow(range(count))
        followed.fill(empty_words(1024))


def test_a_grammar_that_needs_more_and_more_time_ends_its_own_sequence_only() -> None:
    follow_slowly(TOKEN_S / 2, 200)
    with pytest.raises(GrammarTooSlow, match="too long to follow"):
        follow_slowly(TOKEN_S * 2, 200)


def test_a_slow_beginning_alone_is_no_reason() -> None:
    follow_slowly(BURST_S / 4, 2)
    with pytest.raises(GrammarTooSlow, match="too long to follow"):
        follow_slowly(BURST_S / 4, 4)

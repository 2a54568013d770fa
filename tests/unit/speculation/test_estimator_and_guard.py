"""The acceptance estimator learns what it is shown, and never sees an id; the guard pauses what loses."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

from headrace.speculation.drafter import matched
from headrace.speculation.estimator import AcceptanceEstimator
from headrace.speculation.guard import FIRST_PAUSE, JUDGED_STEPS, LOOK, Guard, MeasuredStep


def test_it_learns_that_long_matches_stand_and_short_ones_do_not() -> None:
    estimator = AcceptanceEstimator()
    long, short = matched([1] * 4, 24).facts, matched([1] * 4, 2).facts
    for _ in range(200):
        estimator.learn(1, long, 4)
        estimator.learn(1, short, 0)
    assert min(estimator.rates(3, long)) > 0.6
    assert max(estimator.rates(3, short)) < 0.3
    assert all(0 <= rate <= 1 for rate in estimator.rates(3, long))


def test_rates_are_about_the_frequencies_seen() -> None:
    estimator, rng = AcceptanceEstimator(), np.random.default_rng(3)
    facts = np.array([[0.0, 1.0, 0.6]])
    rates = []
    for _ in range(2000):
        estimator.learn(1, facts, int(rng.random() < 0.6))
        rates += estimator.rates(1, facts)
    assert np.mean(rates[1000:]) == pytest.approx(0.6, abs=0.05)


def test_what_lies_behind_a_rejection_teaches_nothing() -> None:
    one, other = AcceptanceEstimator(), AcceptanceEstimator()
    facts = matched([1] * 5, 8).facts
    one.learn(1, facts[:3], 2)
    other.learn(1, facts, 2)
    assert one.rates(1, facts) == other.rates(1, facts)


def test_what_is_trimmed_depends_on_prefix_and_draft_distribution_alone() -> None:
    """Two drafts with the same facts and different ids get the same rates, and there is no way to tell it the ids."""
    estimator = AcceptanceEstimator()
    first, second = matched([1, 2, 3], 5), matched([60, 59, 58], 5)
    assert estimator.rates(1, first.facts) == estimator.rates(1, second.facts)
    assert list(inspect.signature(estimator.rates).parameters) == ["seq_id", "facts"]
    assert list(inspect.signature(estimator.learn).parameters) == ["seq_id", "facts", "accepted"]


def test_the_guard_pauses_where_speculation_loses_and_tries_again() -> None:
    guard = Guard()
    changes = [guard.add(MeasuredStep(1, 1, 2.0), 1.0) for _ in range(JUDGED_STEPS)]
    assert changes[-1]
    assert not any(changes[:-1])
    assert not guard.on
    assert guard.gain == pytest.approx(0.5)
    paused = [guard.add(MeasuredStep(1, 1, 1.0, plain=True), 1.0) for _ in range(FIRST_PAUSE)]
    assert paused[-1]
    assert guard.on
    for _ in range(JUDGED_STEPS):
        guard.add(MeasuredStep(1, 1, 2.0), 1.0)
    longer = [guard.add(MeasuredStep(1, 1, 1.0, plain=True), 1.0) for _ in range(2 * FIRST_PAUSE)]
    assert longer.index(True) == 2 * FIRST_PAUSE - 1, "the second pause is longer"


def test_the_guard_lets_gains_be() -> None:
    guard = Guard()
    assert not any(guard.add(MeasuredStep(2, 7, 1.4), 1.0) for _ in range(5 * JUDGED_STEPS))
    assert guard.on
    assert guard.gain == pytest.approx(7 / 2 / 1.4)


def test_the_guard_believes_measured_plain_steps_more_than_the_estimate() -> None:
    guard = Guard()
    for _ in range(5):
        guard.add(MeasuredStep(1, 1, 0.5, plain=True), 9.0)
    for _ in range(JUDGED_STEPS):
        guard.add(MeasuredStep(1, 2, 2.0), 9.0)
    assert not guard.on


def test_a_small_gain_by_an_estimate_is_checked_against_plain_steps() -> None:
    """The estimate makes speculation look 20 % better; five steps show that it loses."""
    guard = Guard()
    changes = [guard.add(MeasuredStep(1, 2, 2.0), 1.2) for _ in range(JUDGED_STEPS)]
    assert (changes[-1], guard.gain) == (True, pytest.approx(1.2))
    looked = [guard.add(MeasuredStep(1, 1, 0.9, plain=True), 1.2) for _ in range(LOOK)]
    assert looked.index(True) == LOOK - 1
    judged = [guard.add(MeasuredStep(1, 2, 2.0), 1.2) for _ in range(JUDGED_STEPS)]
    assert (judged[-1], guard.on, guard.gain) == (True, False, pytest.approx(0.9))


def test_looking_for_drafts_in_vain_is_a_loss_too() -> None:
    """Nothing was worth verifying: plain decoding's time and the drafter's on top of it."""
    guard = Guard()
    changes = [guard.add(MeasuredStep(1, 1, 1.04, draft_ms=0.04, plain=True), 1.0) for _ in range(JUDGED_STEPS)]
    assert changes[-1]
    assert not guard.on
    assert guard.gain == pytest.approx(1 / 1.04, abs=0.01)

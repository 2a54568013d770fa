"""A clock that was wrong: what carries a time that is still to come must not stay for ever, nor keep out what comes."""

from __future__ import annotations

from pathlib import Path

import pytest
from kv_values import found, key_of, put

from headrace.kv.ages import CLOCK_SLACK_S, DAY_S, last_use
from headrace.kv.leaving import SMALL, Leaving
from headrace.kv.local import LocalStore

SPAN = 12_288  # what a value of 5000 bytes takes
NOW = 1e9


@pytest.mark.parametrize("small", [SMALL, 1], ids=["ranked anew", "an order that is kept"])
@pytest.mark.parametrize("tenant_quota_bytes", [None, 40 * SPAN])
def test_a_clock_set_back_costs_what_was_stored_under_it_and_nothing_else(
    tmp_path: Path, small: int, tenant_quota_bytes: int | None
) -> None:
    now = [NOW + 300 * DAY_S]
    store = LocalStore(
        tmp_path, 64 * SPAN, segment_bytes=4 * SPAN, clock=lambda: now[0], tenant_quota_bytes=tenant_quota_bytes
    )
    store.leaving = Leaving(small)
    for n in range(80):
        now[0] += 1
        assert put(store, n)
    now[0] = NOW
    for n in range(100, 130):
        now[0] += 1
        assert put(store, n)
    held = [n for n in range(130) if store.has([(key_of(n), 0)])[0]]
    assert set(range(106, 130)) <= set(held)  # without it each would be the next one's victim
    store.close()


def test_a_value_that_is_used_again_has_the_time_that_is(tmp_path: Path) -> None:
    now = [NOW + DAY_S]
    store = LocalStore(tmp_path, 64 * SPAN, clock=lambda: now[0])
    assert put(store, 1)
    now[0] = NOW
    assert found(store, 1)
    store.flush_uses()
    entry = store.index.get(key_of(1) + bytes([0]))
    assert entry is not None
    assert entry.used == NOW
    store.close()


def test_a_chain_that_was_asked_for_in_times_to_come_is_stored_as_of_now(tmp_path: Path) -> None:
    now = [NOW + DAY_S]
    store = LocalStore(tmp_path, 64 * SPAN, clock=lambda: now[0])
    store.observe([key_of(1)], 0, [0])
    now[0] = NOW
    assert put(store, 1)
    entry = store.index.get(key_of(1) + bytes([0]))
    assert entry is not None
    assert entry.used == NOW
    store.close()


def test_a_little_is_not_minded() -> None:
    assert last_use(NOW + CLOCK_SLACK_S, NOW) == NOW + CLOCK_SLACK_S
    assert last_use(NOW + CLOCK_SLACK_S + 1, NOW) == 0


def test_a_use_that_is_told_late_does_not_undo_a_later_one(tmp_path: Path) -> None:
    now = [NOW]
    early, late = (LocalStore(tmp_path, 64 * SPAN, clock=lambda: now[0]) for _ in range(2))
    assert put(early, 1)
    assert found(early, 1)
    now[0] += 1000
    assert found(late, 1)
    late.flush_uses()
    early.flush_uses()
    entry = early.index.get(key_of(1) + bytes([0]))
    assert entry is not None
    assert entry.used == NOW + 1000
    early.close()
    late.close()

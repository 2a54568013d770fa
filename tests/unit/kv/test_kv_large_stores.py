"""Stores of very many values: nothing that is done for each value, or asked while serving, looks at all of them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from kv_values import found, key_of, payload_of, put

from headrace.kv import collection, reclaim
from headrace.kv.index import COUNTED, SPACES, Index
from headrace.kv.leaving import KEPT_SHARE, Leaving
from headrace.kv.local import LocalStore
from headrace.kv.policy import Turns

ROOMY = 64 << 20
SPAN = 12_288  # what a value of 5000 bytes takes
OURS, OTHERS = b"a" * 16, b"b" * 16


class Clock:
    now = 0.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


def listings(store: LocalStore) -> list[int]:
    """Grows with each list of all entries."""
    listed, calls = store.index.all_entries, []
    store.index.all_entries = lambda: calls.append(1) or listed()  # type: ignore[method-assign, func-returns-value]
    return calls


def counted(store: LocalStore) -> tuple[Any, ...]:
    facts = store.stat()
    return facts["values"], facts["value_bytes"], facts["tenants"], facts["name_spaces"]


def test_facts_are_counted_and_not_listed(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, ROOMY, name_space=b"n" * 16)
    other = LocalStore(tmp_path, ROOMY, name_space=b"m" * 16)
    calls = listings(store)
    assert counted(store) == (0, 0, 0, 0)
    for number in range(6):
        put(store, number, tenant=OURS if number else OTHERS)
    other.put(key_of(9), 0, payload_of(key_of(9), 70), tenant=OURS)
    assert counted(store) == (7, 30_070, 2, 2)
    store.delete(key_of(0), 0)
    assert counted(store) == (6, 25_070, 1, 2)
    reclaim.evict(other, 6 * SPAN)
    assert calls == []
    assert counted(store) == (0, 0, 0, 0)
    store.close()
    other.close()


def test_an_index_that_has_no_counts_yet_is_counted_when_it_is_opened(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, ROOMY)
    for number in range(5):
        put(store, number)
    before = counted(store)
    with store.index._env.begin(write=True, db=store.index.meta) as txn:
        for name in (COUNTED, SPACES + bytes(16)):
            assert txn.delete(name)
    assert counted(store) == (0, 0, 1, 0)
    store.close()
    again = LocalStore(tmp_path, ROOMY)
    assert counted(again) == before == (5, 25_000, 1, 1)
    again.close()


def test_a_collection_asks_for_what_its_file_has(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, ROOMY)
    for number in range(4):
        put(store, number)
    store.seal()
    for number in range(3):
        store.delete(key_of(number), 0)
    calls = listings(store)
    assert collection.collect(store)
    assert calls == []
    assert found(store, 3)
    store.close()


def filled(folder: Path, count: int, **limits: Any) -> LocalStore:
    """``count`` values, every eighth of them ours."""
    store = LocalStore(folder, ROOMY, clock=Clock(), **limits)
    store.leaving = Leaving(small=0)
    for number in range(count):
        put(store, number, tenant=OTHERS if number % 8 else OURS)
    return store


def test_a_full_store_is_ranked_once_for_many_evictions(tmp_path: Path) -> None:
    store, count = filled(tmp_path, 20 * KEPT_SHARE), 20 * KEPT_SHARE
    calls = listings(store)
    for number in range(0, 20, 2):
        assert reclaim.evict(store, SPAN) == 1
        assert [found(store, n) for n in (number, number + 1)] == [False, True]  # and the second is young again
        store.flush_uses()
    assert len(calls) <= 2
    assert sum(store.has([(key_of(number), 0) for number in range(count)])) == count - 10
    store.close()


def test_a_tenant_at_its_quota_does_not_have_all_others_ranked_for_each_value(tmp_path: Path) -> None:
    count = 20 * KEPT_SHARE
    store = filled(tmp_path, count, tenant_quota_bytes=count * SPAN)
    store.tenant_quota_bytes = count // 8 * SPAN
    calls = listings(store)
    for number in range(20):
        assert put(store, count + number, tenant=OURS)
    assert len(calls) <= 10
    held = store.has([(key_of(number), 0) for number in range(count + 20)])
    assert [number for number in range(count + 20) if not held[number]] == list(range(0, 160, 8))
    store.close()


def test_what_is_leased_stays_and_a_new_policy_ranks_anew(tmp_path: Path) -> None:
    store = filled(tmp_path, 4 * KEPT_SHARE)
    store.pinned = lambda name: name[:-1] == key_of(1)
    calls = listings(store)
    assert reclaim.evict(store, 2 * SPAN) == 2
    assert [found(store, number) for number in range(4)] == [False, True, False, True]
    store.chooser._fixed = Turns(2)
    before = len(calls)
    reclaim.evict(store, SPAN)
    assert len(calls) == before + 1
    store.close()


def test_what_comes_is_not_stored_at_the_cost_of_what_is_worth_more(tmp_path: Path) -> None:
    """Also where the order is a kept one: the deep end of a prompt that was asked for before all others."""
    store = filled(tmp_path, 8 * KEPT_SHARE)
    entry = store.index.get(key_of(5) + b"\0")
    assert entry is not None
    reclaim.evict(store, SPAN)
    calls = listings(store)
    assert store.leaving.victims(store, 9 * SPAN, None, entry, least=9 * SPAN) == []
    assert store.leaving.victims(store, 9 * SPAN, None, entry, least=0) == [key_of(n) + b"\0" for n in range(1, 5)]
    assert calls == []
    store.close()


def test_the_index_s_room_is_kept_to_as_the_disk_s_is(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, ROOMY, segment_bytes=2 * SPAN, clock=Clock())
    store.most_values = 10
    for number in range(30):
        assert put(store, number)
        assert store.index.count() <= 10
    assert found(store, 29)
    assert not found(store, 0)
    assert store.counts.failed_puts == 0
    store.close()


def test_counts_survive_a_lost_index(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, ROOMY)
    for number in range(5):
        put(store, number, tenant=OURS)
    store.close()
    (tmp_path / "index" / "data.mdb").unlink()
    again = LocalStore(tmp_path, ROOMY)
    assert counted(again) == (5, 25_000, 1, 1)
    again.close()


def test_totals_are_the_entries(tmp_path: Path) -> None:
    store = filled(tmp_path, 40)
    for number in range(0, 40, 3):
        store.delete(key_of(number), 0)
    entries = [entry for _, entry in store.index.all_entries()]
    assert asdict(store.index.totals()) == {
        "values": len(entries),
        "value_bytes": sum(entry.length for entry in entries),
        "tenants": 2,
        "name_spaces": 1,
    }
    assert isinstance(store.index, Index)
    store.close()


@pytest.mark.parametrize("small", [0, 10_000])
def test_a_kept_order_is_the_order(tmp_path: Path, small: int) -> None:
    """Of values that nobody reads, whether ranked once or each time."""
    store = filled(tmp_path, 6 * KEPT_SHARE)
    store.leaving = Leaving(small=small)
    for _ in range(12):
        reclaim.evict(store, 3 * SPAN)
    held = store.has([(key_of(number), 0) for number in range(6 * KEPT_SHARE)])
    assert held == [False] * 36 + [True] * (6 * KEPT_SHARE - 36)
    store.close()

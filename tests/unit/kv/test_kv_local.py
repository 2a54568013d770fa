"""The local store as a dictionary that may forget: a model, limits, ages, tenants, modes."""

from __future__ import annotations

import stat
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from kv_values import found, key_of, payload_of, put

from headrace.contract.errors import StoreError
from headrace.kv import collection, reclaim
from headrace.kv.ages import AGENT, DAY_S
from headrace.kv.local import LocalStore
from headrace.kv.policy import Turns
from headrace.kv.segment import PAGE, padded

ROOMY = 64 << 20


def test_put_get_and_again_after_reopening(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, ROOMY)
    assert not found(store, 1)
    for number, length in ((1, 1), (2, PAGE), (3, 65_536), (4, 65_537), (5, 3_000_000)):
        assert put(store, number, length)
        assert put(store, number, length)  # idempotent
        assert found(store, number, length)
    assert store.counts.puts == 5
    assert store.has([(key_of(1), 0), (key_of(1), 1), (key_of(9), 0)]) == [True, False, False]
    store.close()
    assert not put(store, 6)
    again = LocalStore(tmp_path, ROOMY)
    assert found(again, 5, 3_000_000)
    assert reclaim.check(again) == (5, 0)
    again.close()


def test_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "a" / "kv", ROOMY)
    put(store, 1)
    store.close()
    for path in (tmp_path / "a" / "kv").rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path


def test_what_cannot_be_opened_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="file"):
        LocalStore(tmp_path / "file", ROOMY)


def test_two_in_one_process_share_a_folder(tmp_path: Path) -> None:
    one, other = LocalStore(tmp_path / "kv", ROOMY), LocalStore(tmp_path / "kv", ROOMY, name_space=bytes([2] * 16))
    assert put(one, 1)
    assert put(other, 2)
    assert found(one, 2)
    assert not found(other, 1)  # of another namespace
    one.close()
    one.close()
    assert not put(one, 3)
    assert not found(one, 2)
    assert put(other, 3)  # goes on
    other.close()
    again = LocalStore(tmp_path / "kv", ROOMY)
    assert reclaim.check(again) == (3, 0)
    again.close()


def test_many_threads_of_many_stores_lose_nothing(tmp_path: Path) -> None:
    stores = [LocalStore(tmp_path, ROOMY, segment_bytes=100_000) for _ in range(3)]
    threads = [
        threading.Thread(target=lambda s=store, n=n: [put(s, i) for i in range(n, 60, 3)])
        for n, store in enumerate(stores)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(found(store, i) for store in stores for i in range(60))
    for store in stores:
        store.close()


def test_other_weights_or_dtype_never_see_a_value(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, ROOMY, name_space=bytes([1] * 16))
    put(store, 1)
    store.close()
    other = LocalStore(tmp_path, ROOMY, name_space=bytes([2] * 16))
    assert not found(other, 1)
    assert other.has([(key_of(1), 0)]) == [False]
    other.close()


def test_the_store_stays_within_its_size_and_keeps_what_was_used(tmp_path: Path) -> None:
    capacity = 400_000
    store = LocalStore(tmp_path, capacity, segment_bytes=60_000)
    put(store, 0)
    for number in range(1, 200):
        assert put(store, number)
        assert found(store, 0)
        files = sum(p.stat().st_size for p in (tmp_path / "segments").iterdir())
        assert files <= capacity
    assert found(store, 199)
    assert not found(store, 1)
    assert store.counts.evicted > 100
    assert not store.put(key_of(999), 0, np.zeros(capacity, np.uint8))  # never fits: refused, nothing is lost
    assert found(store, 0)
    store.close()


def test_of_one_use_the_deepest_leaves_first(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, ROOMY, clock=lambda: 1000.0)
    for depth in (3, 0, 4, 1, 2):
        put(store, depth, depth=depth)
    assert reclaim.evict(store, 1) == 1
    assert reclaim.evict(store, 2 * 12_288) == 2
    assert [depth for depth in range(5) if found(store, depth)] == [0, 1]
    store.close()


def test_a_policy_decides_who_leaves(tmp_path: Path) -> None:
    now = [0.0]
    store = LocalStore(tmp_path, 30 * 12_288, segment_bytes=5 * 12_288, policy=Turns(4), clock=lambda: now[0])
    for number in range(100):
        now[0] += 1
        put(store, number, turn=5 if number < 4 else 1)
    assert all(found(store, number) for number in range(4))
    assert not found(store, 5)
    store.close()


def test_classes_have_their_ages(tmp_path: Path) -> None:
    now = [0.0]
    store = LocalStore(tmp_path, ROOMY, clock=lambda: now[0])
    put(store, 1, ttl_class=AGENT)
    put(store, 2)
    now[0] = 3.5 * DAY_S
    assert not found(store, 1)
    assert found(store, 2)  # and this use makes it young again
    store.flush_uses()
    now[0] = 9 * DAY_S
    assert found(store, 2)
    assert reclaim.expire(store) == 1
    assert put(store, 1)
    assert found(store, 1)
    store.close()


@pytest.mark.parametrize("tenant", [b"a" * 16, None])
def test_purging_leaves_no_byte_of_a_tenant(tmp_path: Path, tenant: bytes | None) -> None:
    store = LocalStore(tmp_path, ROOMY, segment_bytes=60_000)
    for number in range(20):
        put(store, number, tenant=(b"a" if number % 2 else b"b") * 16)
    store.delete(key_of(1), 0)  # forgotten, but its bytes are still there
    assert reclaim.purge(store, tenant) == (9 if tenant else 19)
    kept = [number for number in range(20) if found(store, number)]
    assert kept == (list(range(0, 20, 2)) if tenant else [])
    disk = b"".join(p.read_bytes() for p in (tmp_path / "segments").iterdir())
    for number in range(20):
        head = payload_of(key_of(number)).tobytes()[:64]
        assert (head in disk) == (number in kept)
    store.close()
    again = LocalStore(tmp_path, ROOMY)
    assert [number for number in range(20) if found(again, number)] == kept
    again.close()


class StoreMachine(RuleBasedStateMachine):
    """Against a dictionary: a value may be missing only when something was evicted; it is never wrong."""

    CAPACITY = 300_000
    numbers = st.integers(0, 24)

    def __init__(self) -> None:
        super().__init__()
        import tempfile

        self.folder = tempfile.TemporaryDirectory()
        self.model: dict[int, int] = {}
        self.store = self.open()

    def open(self) -> LocalStore:
        return LocalStore(Path(self.folder.name) / "kv", self.CAPACITY, segment_bytes=50_000)

    @rule(number=numbers)
    def put(self, number: int) -> None:
        length = 1 + 977 * number
        assert put(self.store, number, length)
        self.model[number] = length

    @rule(number=numbers)
    def get(self, number: int) -> None:
        here = found(self.store, number, 1 + 977 * number)
        assert here <= (number in self.model)
        if self.fits():
            assert here == (number in self.model)

    @rule(number=numbers)
    def delete(self, number: int) -> None:
        assert self.store.delete(key_of(number), 0) <= (self.model.pop(number, None) is not None)

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = self.open()

    @rule()
    def collect(self) -> None:
        collection.collect(self.store, everything=True)

    @precondition(lambda self: len(self.model) > 3)
    @rule()
    def check(self) -> None:
        assert reclaim.check(self.store)[1] == 0

    def fits(self) -> bool:
        return self.store.counts.evicted == 0 and self.evicted_before() == 0

    def evicted_before(self) -> int:
        return sum(PAGE + padded(n) for n in self.model.values()) > self.CAPACITY // 3

    @invariant()
    def bounded(self) -> None:
        files = sum(p.stat().st_size for p in (Path(self.folder.name) / "kv" / "segments").iterdir())
        assert files <= self.CAPACITY

    def teardown(self) -> None:
        self.store.close()
        self.folder.cleanup()


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(max_examples=15, stateful_step_count=30, deadline=None)


def test_a_tenant_s_quota_is_met_at_its_own_expense(tmp_path: Path) -> None:
    now, a, b = [0.0], b"a" * 16, b"b" * 16
    store = LocalStore(tmp_path, ROOMY, tenant_quota_bytes=4 * 12_288, clock=lambda: now[0])
    for number in range(10):
        now[0] += 1
        assert put(store, number, tenant=a)
        assert put(store, 100 + number, tenant=b)
        assert store.index.tenant_bytes(a) <= 4 * 12_288
    assert [number for number in range(10) if found(store, number)] == [6, 7, 8, 9]
    assert not put(store, 50, 60_000, tenant=a)  # more than it may ever have: nothing is lost for it
    assert found(store, 9)
    assert found(store, 109)
    reclaim.purge(store, a)
    assert store.index.tenant_bytes(a) == 0
    assert store.index.tenant_bytes(b) == 4 * 12_288
    store.close()

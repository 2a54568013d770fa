"""One suite of checks for every place that keeps values: the local store, and objects in memory, in files, and in S3,
and stripes over twelve of them.

``HEADRACE_TEST_S3``, an endpoint such as http://127.0.0.1:5555 with a bucket ``headrace-kv``, adds a server
(``scripts/kv_s3.py`` starts one). ``HEADRACE_TEST_MOONCAKE``, HOST:PORT, adds a Mooncake Store
(``scripts/kv_mooncake.py`` starts its master).
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from kv_values import found, key_of, payload_of, put

from headrace.contract.errors import StoreError
from headrace.kv.backend import Backend
from headrace.kv.backoff import BACKOFF_S
from headrace.kv.local import LocalStore
from headrace.kv.mooncake import MooncakeStore, open_mooncake
from headrace.kv.objects import ObjectStore, open_bucket
from headrace.kv.records import Match, RecordKind, RecordSpec
from headrace.kv.segment import PAGE
from headrace.kv.shares import SHARES
from headrace.kv.striped import StripedStore

obstore = pytest.importorskip("obstore.store")

SPACE = b"s" * 16
SPECS = (
    RecordSpec(RecordKind.BLOCK, (0,), 5000),
    RecordSpec(RecordKind.STATE, (1,), 5000, (1,), Match.TRAILING, 200),
)


def s3_bucket(prefix: str) -> Any:
    endpoint = os.environ.get("HEADRACE_TEST_S3")
    if endpoint is None:
        pytest.skip("HEADRACE_TEST_S3 names no server")
    return open_bucket(f"s3://headrace-kv/{prefix}")


def bucket_of(kind: str, folder: Path) -> Any:
    if kind == "memory":
        return obstore.MemoryStore()
    return obstore.LocalStore(folder) if kind == "files" else s3_bucket(secrets.token_hex(8))


def striped_over(kind: str, folder: Path) -> StripedStore:
    pytest.importorskip("pyeclib")
    if kind == "buckets":
        return StripedStore([ObjectStore(obstore.MemoryStore(), SPACE) for _ in range(SHARES)])
    return StripedStore([LocalStore(folder / str(i), 16 << 20, name_space=SPACE) for i in range(SHARES)])


def mooncake_store() -> MooncakeStore:
    master = os.environ.get("HEADRACE_TEST_MOONCAKE")
    if master is None:
        pytest.skip("HEADRACE_TEST_MOONCAKE names no master")
    return MooncakeStore(open_mooncake(master, 64 << 20), secrets.token_bytes(16))


@pytest.fixture(params=["local", "memory", "files", "s3", "mooncake", "striped-buckets", "striped-folders"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    kind, _, of = request.param.partition("-")
    if kind == "local":
        store: Backend = LocalStore(tmp_path, 64 << 20, name_space=SPACE)
    elif kind == "mooncake":
        store = mooncake_store()
    elif kind == "striped":
        store = striped_over(of, tmp_path)
    else:
        store = ObjectStore(bucket_of(request.param, tmp_path), SPACE)
    yield store
    store.close()


def test_put_if_absent_and_whole_or_not_at_all(backend: Any) -> None:
    assert not found(backend, 1)
    for number, length in ((1, 1), (2, PAGE), (3, 65_536), (4, 65_537), (5, 700_000)):
        assert put(backend, number, length)
        assert put(backend, number, length)  # idempotent
        assert found(backend, number, length)
    other = payload_of(key_of(2), PAGE)[::-1].copy()
    assert backend.put(key_of(2), 0, other)  # it is here, as what it was
    assert found(backend, 2, PAGE)
    assert not backend.put(key_of(9), 0, np.zeros(0, np.uint8))
    assert backend.has([(key_of(1), 0), (key_of(1), 1), (key_of(9), 0)]) == [True, False, False]


def test_ranges_are_parts_of_what_was_stored_or_misses(backend: Any) -> None:
    key, length = key_of(1), 200_000
    whole = payload_of(key, length)
    assert put(backend, 1, length)
    for offset, size in ((0, 1), (0, length), (65_535, 2), (65_536, 65_536), (131_000, 69_000), (199_999, 1)):
        part = backend.get_range(key, 0, offset, size)
        assert part is not None
        assert np.array_equal(part, whole[offset : offset + size])
    for offset, size in ((0, length + 1), (length, 1), (-1, 2), (5, 0)):
        assert backend.get_range(key, 0, offset, size) is None
    assert backend.get_range(key_of(2), 0, 0, 1) is None


def test_the_longest_prefix_of_a_chain_by_the_rules_of_its_kinds(backend: Any) -> None:
    chain = [key_of(number) for number in range(40)]
    for grain, key in enumerate(chain[:37]):
        backend.put(key, int(RecordKind.BLOCK), payload_of(key), depth=grain, turn=3)
    for key in chain[20:30]:
        backend.put(key, int(RecordKind.STATE), payload_of(key))
    assert backend.match(chain, SPECS[:1]).grains == 37
    match = backend.match(chain, SPECS)
    assert (match.grains, match.turn) == (30, 3)  # the window of a longer prefix is not here
    assert backend.delete(chain[5], int(RecordKind.BLOCK))
    assert backend.match(chain, SPECS[:1]).grains == 5
    assert backend.match(chain, SPECS).grains == 0
    assert backend.match([key_of(99)], SPECS).grains == backend.match([], SPECS).grains == 0


def test_what_is_deleted_is_gone_and_names_list_the_rest(backend: Any) -> None:
    for number in range(5):
        put(backend, number)
    backend.put(key_of(0), 2, payload_of(key_of(0)))
    assert backend.delete(key_of(1), 0)
    assert not backend.delete(key_of(1), 0)
    assert not found(backend, 1)
    if isinstance(backend, MooncakeStore):
        with pytest.raises(StoreError, match="cannot be listed"):
            backend.names()
    else:
        wanted = {(key_of(number), 0) for number in (0, 2, 3, 4)} | {(key_of(0), 2)}
        assert set(backend.names()) == wanted
    assert put(backend, 1)
    assert found(backend, 1)


def test_after_its_close_it_stores_and_finds_nothing(backend: Any) -> None:
    put(backend, 1)
    backend.close()
    assert not put(backend, 2)
    assert not found(backend, 1)
    assert backend.has([(key_of(1), 0)]) == [False]


@pytest.mark.parametrize("kind", ["memory", "files", "s3"])
def test_another_namespace_finds_nothing_of_it(kind: str, tmp_path: Path) -> None:
    bucket = bucket_of(kind, tmp_path)
    mine, other = ObjectStore(bucket, SPACE), ObjectStore(bucket, b"o" * 16)
    assert put(mine, 1)
    assert not found(other, 1)
    assert list(other.names()) == []


@pytest.mark.parametrize("at", [5, PAGE - 1, PAGE, PAGE + 70_000, -1])
def test_a_damaged_object_is_a_miss_and_goes(at: int) -> None:
    bucket = obstore.MemoryStore()
    store, length = ObjectStore(bucket, SPACE), 100_000
    put(store, 1, length)
    [[entry]] = [list(found) for found in bucket.list()]
    body = bytearray(bytes(bucket.get(entry["path"]).bytes()))
    body[at] ^= 1
    bucket.put(entry["path"], bytes(body))
    assert store.get(key_of(1), 0) is None
    assert store.counts.damaged == 1
    assert store.has([(key_of(1), 0)]) == [False]
    bucket.put(entry["path"], bytes(body[:-1]))
    assert store.get_range(key_of(1), 0, length - 1, 1) is None


def test_an_object_larger_than_any_value_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = obstore.MemoryStore()
    store = ObjectStore(bucket, SPACE)
    put(store, 1)
    monkeypatch.setattr("headrace.kv.objects.MOST_VALUE_BYTES", 4000)
    taken: list[int] = []
    monkeypatch.setattr(
        "headrace.kv.objects._bytes", lambda body: taken.append(len(body)) or np.frombuffer(body, np.uint8)
    )
    assert store.get(key_of(1), 0) is None
    assert taken == [0]
    assert store.has([(key_of(1), 0)]) == [False]  # it stands in nobody's way


class Broken:
    """A bucket whose every call fails, and counts."""

    def __init__(self) -> None:
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        def fail(*_: Any, **__: Any) -> Any:
            self.calls += 1
            raise OSError(28, f"{name}: no space")

        return fail


def test_a_failing_bucket_is_a_miss_and_left_alone_for_a_while() -> None:
    now = [0.0]
    bucket = Broken()
    store = ObjectStore(bucket, SPACE, clock=lambda: now[0])
    assert store.get(key_of(1), 0) is None
    assert not put(store, 1)
    assert store.match([key_of(1)], SPECS).grains == 0
    assert bucket.calls == 1
    now[0] = BACKOFF_S + 1
    assert not store.delete(key_of(1), 0)
    assert bucket.calls == 2
    with pytest.raises(StoreError, match="cannot be listed"):
        list(store.names())


def test_urls_it_refuses() -> None:
    with pytest.raises(StoreError, match="cannot be opened"):
        open_bucket("s3://")


class ObjectsAsADictionary(RuleBasedStateMachine):
    """Whatever is done to it, it is a dictionary that keeps the first value of a name."""

    numbers = st.integers(0, 5)

    def __init__(self) -> None:
        super().__init__()
        self.store = ObjectStore(obstore.MemoryStore(), SPACE)
        self.model: dict[int, int] = {}

    @rule(number=numbers, length=st.sampled_from([1, 4096, 5000, 65_537]))
    def put(self, number: int, length: int) -> None:
        assert put(self.store, number, length)
        self.model.setdefault(number, length)

    @rule(number=numbers)
    def get(self, number: int) -> None:
        assert found(self.store, number, self.model.get(number, 1)) == (number in self.model)

    @rule(number=numbers)
    def delete(self, number: int) -> None:
        assert self.store.delete(key_of(number), 0) == (self.model.pop(number, None) is not None)

    @invariant()
    def the_same_names(self) -> None:
        assert set(self.store.names()) == {(key_of(number), 0) for number in self.model}

    def teardown(self) -> None:
        self.store.close()


TestObjectsAsADictionary = ObjectsAsADictionary.TestCase
TestObjectsAsADictionary.settings = settings(max_examples=20, stateful_step_count=20, deadline=None)

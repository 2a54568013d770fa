"""What a Mooncake Store's codes, silences and refusals become, on a client whose faults are scripted."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
from kv_values import found, key_of, put

from headrace.contract.errors import StoreError
from headrace.kv.backoff import BACKOFF_S, Backoff
from headrace.kv.mooncake import FULL, NOT_FOUND, MooncakeBucket, MooncakeStore, open_mooncake

DEADLINE_S = 60.0
RPC_FAIL = -900


class Client:
    """The calls that are used, over a dictionary. ``code``: what every call answers instead, if any."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.code = self.calls = 0
        self.gate = threading.Event()
        self.gate.set()

    def _begin(self) -> int:
        self.calls += 1
        assert self.gate.wait(DEADLINE_S)
        return self.code

    def get_size(self, key: str) -> int:
        return self._begin() or (len(self.values[key]) if key in self.values else NOT_FOUND)

    def batch_is_exist(self, keys: Sequence[str]) -> list[int]:
        code = self._begin()
        return [-1 if code else int(key in self.values) for key in keys]

    def get(self, key: str) -> bytes:
        return b"" if self._begin() else self.values.get(key, b"")

    def put(self, key: str, value: bytes) -> int:
        code = self._begin()
        if not code:
            self.values.setdefault(key, value)
        return code

    def remove(self, key: str, force: bool) -> int:
        assert force  # a lease of its own must not keep a damaged value
        return self._begin() or (0 if self.values.pop(key, None) is not None else NOT_FOUND)

    def close(self) -> int:
        return 0


def store_over(client: Client, timeout_s: float = DEADLINE_S) -> MooncakeStore:
    return MooncakeStore(MooncakeBucket(client, timeout_s), b"s" * 16)


def test_values_come_back_and_damaged_ones_go() -> None:
    client = Client()
    store = store_over(client)
    assert put(store, 1)
    assert found(store, 1)
    assert not found(store, 2)
    assert store.has([(key_of(1), 0), (key_of(2), 0)]) == [True, False]
    [name] = client.values
    client.values[name] = client.values[name][:-1] + b"?"
    assert not found(store, 1)
    assert not client.values
    store.close()
    store.close()


def test_where_all_is_full_a_put_is_refused_and_reads_go_on() -> None:
    client = Client()
    store = store_over(client)
    put(store, 1)
    real, client.put = client.put, lambda *_: FULL  # type: ignore[method-assign]
    assert not put(store, 2)
    assert found(store, 1)
    client.put = real  # type: ignore[method-assign]
    assert put(store, 2)
    store.close()


@pytest.mark.parametrize("silent", [False, True])
def test_a_master_that_fails_or_is_silent_is_left_alone_for_a_while(silent: bool) -> None:
    now, client = [0.0], Client()
    store = store_over(client, 0.01 if silent else DEADLINE_S)
    store._backoff = Backoff(lambda: now[0])
    if silent:
        client.gate.clear()
    client.code = RPC_FAIL
    assert not found(store, 1)
    asked = client.calls
    assert not put(store, 1)
    assert store.has([(key_of(1), 0)]) == [False]
    assert client.calls == asked
    client.code, now[0] = 0, BACKOFF_S + 1
    client.gate.set()
    store._bucket._timeout_s = DEADLINE_S
    assert store.has([(key_of(1), 0)]) == [False]
    assert client.calls == asked  # what somebody waits for leaves it alone for longer
    assert put(store, 1)
    assert found(store, 1)
    store.close()


def test_a_master_that_fails_at_a_look_up_is_said_to(caplog: pytest.LogCaptureFixture) -> None:
    client = Client()
    store = store_over(client)
    client.code = RPC_FAIL
    assert store.has([(key_of(1), 0)]) == [False]  # its answers are codes of their own
    assert not put(store, 1)
    [record] = caplog.records
    assert "fails at a request" in record.getMessage()
    store.close()


def test_addresses_it_refuses() -> None:
    pytest.importorskip("mooncake.store")
    with pytest.raises(StoreError, match="is no HOST:PORT"):
        open_mooncake("nowhere", None)

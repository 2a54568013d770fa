"""Whatever a store raises or answers, the connector is ready, off or on, and takes no more than it gives back."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from kv_places import DEADLINE_S, Place
from kv_values import key_of

from headrace.contract.errors import StoreError
from headrace.kv import connector as connecting
from headrace.kv.backend import Name
from headrace.kv.connector import OpenStore, StoreConnector
from headrace.kv.guarded import Guarded
from headrace.kv.health import Health
from headrace.kv.records import RecordKind, RecordSpec, StoreMatch

BLOCK = RecordSpec(RecordKind.BLOCK, (0,), 100)
KEYS = [key_of(number) for number in range(2)]
NAMES: list[Name] = [(key, 0) for key in KEYS]


def connected(open_store: Callable[[], OpenStore]) -> StoreConnector:
    return StoreConnector(open_store, [BLOCK], None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "error", [StoreError("here", "x"), KeyError("x"), struct.error("x"), RuntimeError("x")], ids=str
)
def test_no_error_of_an_opening_leaves_anybody_waiting(error: Exception) -> None:
    def fail() -> OpenStore:
        raise error

    connector = connected(fail)
    assert connector._ready.wait(DEADLINE_S)
    assert connector.off
    assert connector.wait_opened(DEADLINE_S) is None
    connector.close()


def test_a_store_whose_saver_cannot_begin_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("scripted: no more threads")

    monkeypatch.setattr(connecting, "Saver", fail)
    place = Place()
    connector = connected(lambda: OpenStore(place, bytes(32)))
    assert connector.wait_opened(DEADLINE_S) is None
    assert (connector.off, place.closed) == (True, True)
    connector.close()


def test_a_fetch_that_gets_no_thread_is_a_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    connector = connected(lambda: OpenStore(Place(), bytes(32)))
    assert connector.wait_opened(DEADLINE_S) is not None

    def fail(*_: Any) -> None:
        raise RuntimeError("scripted: no more threads")

    with monkeypatch.context() as patch:
        patch.setattr(connector._threads, "submit", fail)
        session = connector.open(range(300), "", "", 0, lambda: None, "")
        assert session.num_external_tokens() == 0
    connector.close()


class Liar(Place):
    """Answers for more than it was asked."""

    def has(self, keys: Sequence[Name]) -> list[bool]:
        return [True] * (len(keys) + 1)

    def match(self, keys: Sequence[bytes], specs: Sequence[RecordSpec], again: bool = False) -> StoreMatch:
        del specs, again
        return StoreMatch(len(keys) + 1, lease=5)


def test_answers_to_other_questions_are_none() -> None:
    guarded = Guarded(Liar(), Health("a liar"))
    assert guarded.has(NAMES) == [False, False]
    assert guarded.match(KEYS, [BLOCK]) == StoreMatch(0, lease=5)


class Broken:
    """A store of which every call raises."""

    fast_lookups = True

    def _fail(self, *_: Any, **__: Any) -> Any:
        raise LookupError("scripted")

    has = match = get_leased = release = put = close = _fail


def test_what_is_raised_is_a_miss_and_told(caplog: pytest.LogCaptureFixture) -> None:
    guarded = Guarded(Broken(), Health("a place"))
    assert guarded.has(NAMES) == [False, False]
    assert guarded.match(KEYS, [BLOCK]) == StoreMatch(0)
    assert guarded.get_leased(0, KEYS[0], 0) is None
    guarded.release(1)
    assert not guarded.put(KEYS[0], 0, None, tenant=bytes(16), depth=0, turn=1, ttl_class=0)  # type: ignore[arg-type]
    guarded.close()
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 5  # once for each kind of call
    assert all("a place" in line and "LookupError: scripted" in line for line in lines)

"""What a saver takes for stored: by grain and kind, only what was proven, and not what has gone since."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import pytest
from kv_places import DEADLINE_S, Place
from kv_values import key_of, payload_of

from headrace.contract.ports import Bytes
from headrace.kv.backend import Name
from headrace.kv.connector import ConnectorCounts
from headrace.kv.known import Known
from headrace.kv.records import Match, RecordKind, RecordSpec, StoreMatch
from headrace.kv.saver import Grain, Saver

BLOCK = RecordSpec(RecordKind.BLOCK, (0,), 100)
STATE = RecordSpec(RecordKind.STATE, (1,), 100, (1,), Match.TRAILING, 200)
KEYS = [key_of(number) for number in range(4)]
VALUE = payload_of(KEYS[0], 100)


class Mover:
    """Copies at once; every record is the same bytes."""

    def read(self, grains: Sequence[Sequence[int]]) -> Future[list[dict[int, Bytes]]]:
        done: Future[list[dict[int, Bytes]]] = Future()
        done.set_result([{0: VALUE, 2: VALUE} for _ in grains])
        return done


class Slow(Place):
    """Answers slowly, and tells of every put."""

    fast_lookups = False

    def __init__(self) -> None:
        super().__init__()
        self.puts: queue.SimpleQueue[Name] = queue.SimpleQueue()

    def put(self, key: bytes, kind: int, payload: Bytes, **fields: Any) -> bool:
        stored = super().put(key, kind, payload, **fields)
        self.puts.put((key, kind))
        return stored


class Quick(Slow):
    fast_lookups = True


def grain(key: bytes, *blocks: int) -> Grain:
    """One block per group; 0: it is gone."""
    return Grain(key, bytes(16), 0, 1, blocks)


@pytest.fixture(params=[Slow, Quick])
def store(request: pytest.FixtureRequest) -> Slow:
    place: Slow = request.param()
    return place


def saver_of(store: Slow) -> Saver:
    return Saver(store, (BLOCK, STATE), Mover(), ConnectorCounts())  # type: ignore[arg-type]


def test_a_grain_whose_block_is_stored_gets_its_window_later(store: Slow) -> None:
    saver = saver_of(store)
    for blocks, stored in (((1, 0), 0), ((1, 2), 2)):
        saver.add(grain(KEYS[0], *blocks))
        saver.flush()
        assert store.puts.get(timeout=DEADLINE_S) == (KEYS[0], stored)
    saver.add(grain(KEYS[0], 1, 2))
    saver.flush()
    saver.close()
    assert store.puts.empty()


def test_two_sequences_seal_a_grain_in_one_step(store: Slow) -> None:
    saver = saver_of(store)
    for blocks in ((1, 2), (1, 0), (1, 2)):
        saver.add(grain(KEYS[0], *blocks))
    saver.flush()
    saver.close()
    assert [store.puts.get(timeout=DEADLINE_S) for _ in range(2)] == [(KEYS[0], 0), (KEYS[0], 2)]
    assert store.puts.empty()


def test_what_left_the_store_is_forgotten_and_what_is_there_is_not() -> None:
    store = Slow()
    saver = saver_of(store)
    names = [(key, kind) for key in KEYS for kind in (0, 2)]
    saver._known.note(names)
    store.values = {name: (VALUE, 1) for name in names if name not in {(KEYS[2], 0), (KEYS[3], 2)}}
    saver.learn(KEYS, StoreMatch(2))
    assert saver._known.holds(names) == [name in store.values for name in names]
    saver.missed([(KEYS[0], 0)])
    assert saver._known.holds(names[:2]) == [False, True]
    saver.close()


def test_a_look_up_proves_what_its_rules_ask_for() -> None:
    blocks = [(key, 0) for key in KEYS[:3]]
    windows = [(key, 2) for key in KEYS[STATE.first_needed(3) : 3]]
    assert windows
    assert len(windows) < 3
    assert StoreMatch(3).proven(KEYS, (BLOCK, STATE)) == blocks + windows
    assert StoreMatch(3, windows_elsewhere=True).proven(KEYS, (BLOCK, STATE)) == blocks
    assert StoreMatch(0).proven(KEYS, (BLOCK, STATE)) == []


def test_what_is_known_is_bounded() -> None:
    known = Known(2)
    known.note((key, 0) for key in KEYS)
    assert known.holds([(key, 0) for key in KEYS]) == [False, False, True, True]

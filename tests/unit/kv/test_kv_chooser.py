"""The policy of a running store: chosen by what is asked of it, from uses that no reader waits for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from kv_servers import on_a_thread
from kv_values import key_of, put

from headrace.kv.chooser import LEAST_VALUES, Chooser
from headrace.kv.client import RemoteStore
from headrace.kv.connector import Store
from headrace.kv.host_memory import HostMemory
from headrace.kv.host_tier import HostTier
from headrace.kv.index import entry_key
from headrace.kv.local import LocalStore
from headrace.kv.policy import Lru, Turns
from headrace.kv.records import Match, RecordKind, RecordSpec
from headrace.kv.server import StoreServer
from headrace.kv.shadow import WINDOW
from headrace.kv.uses import MOST_ASKED, USED_BATCH

BLOCK = (RecordSpec(RecordKind.BLOCK, (0,), 300),)


def keys(name: int, length: int = 4) -> list[bytes]:
    return [key_of(1000 * name + i) for i in range(length)]


def test_lru_until_the_store_holds_enough_then_what_the_shadow_says() -> None:
    chooser = Chooser()
    assert chooser.saw(keys(1)) == 0
    assert chooser.policy == Lru()
    chooser.start(600)
    for i in range(WINDOW * 3):  # a few conversations return in a flood of requests that never do
        chooser.saw(keys(100 + i))
        if i % 2 == 0:
            chooser.saw(keys((i // 2) % 40))
    assert isinstance(chooser.policy, Turns)


def test_a_policy_that_was_given_stays() -> None:
    chooser = Chooser(Turns(2))
    chooser.start(100)
    assert [chooser.saw(keys(1)) for _ in range(3)] == [1, 2, 3]
    assert chooser.policy == Turns(2)


def test_uses_reach_the_index_with_their_turns(tmp_path: Path) -> None:
    now = [0.0]
    store = LocalStore(tmp_path, 64 << 20, clock=lambda: now[0])
    for number in range(LEAST_VALUES + 4):
        put(store, number, 300)
    chain = [key_of(number) for number in range(3)]
    for turn in (1, 2):
        now[0] += 10
        assert store.match([*chain, key_of(999)], BLOCK).grains == 3
        store.flush_uses()
        entry = store.index.get(entry_key(chain[2], 0))
        assert entry is not None
        assert (entry.used, entry.turn) == (10.0 * turn, turn)
    assert store.match(chain, BLOCK).turn == 2
    other = store.index.get(entry_key(key_of(9), 0))
    assert other is not None
    assert other.used == 0.0
    assert store.stat()["policy"] == "lru"
    store.close()


def test_what_waits_to_be_written_down_is_bounded(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, 64 << 20)
    put(store, 1, 300)
    for _ in range(2 * MOST_ASKED):
        store.match([key_of(1)], BLOCK)
    assert len(store._uses._asked) == MOST_ASKED
    for number in range(2, USED_BATCH + 2):
        put(store, number, 300)
        assert store.get(key_of(number), 0) is not None
    assert len(store._uses._used) < USED_BATCH
    store.close()


@contextmanager
def reached(store: LocalStore, through: str) -> Iterator[Store]:
    """The store itself, or through a server, which closes it."""
    if through == "itself":
        yield store
        store.close()
        return
    server = StoreServer(store, "tcp://127.0.0.1:*")
    with on_a_thread(server) as address, closing(RemoteStore(address, timeout_s=60)) as client:
        yield client


@pytest.mark.parametrize("through", ["itself", "a server"])
def test_a_tier_that_asks_twice_makes_one_turn_of_a_request(tmp_path: Path, through: str) -> None:
    """Blocks are in the store and windows nowhere, so it asks for both, then for blocks alone."""
    store = LocalStore(tmp_path, 64 << 20)
    for number in range(LEAST_VALUES + 4):
        put(store, number, 300)
    chain = [key_of(number) for number in range(3)]
    window = RecordSpec(RecordKind.STATE, (1,), 300, (1,), Match.TRAILING, 200)
    with reached(store, through) as asked:
        tier = HostTier(asked, HostMemory(1 << 20))
        for turn in (1, 2, 3):
            assert tier.match(chain, (*BLOCK, window)).grains == 0
            store.flush_uses()
            entry = store.index.get(entry_key(chain[2], 0))
            assert entry is not None
            assert entry.turn == turn


def test_all_of_a_prompt_has_the_time_of_its_first_question(tmp_path: Path) -> None:
    now = [0.0]
    store = LocalStore(tmp_path, 64 << 20, clock=lambda: now[0])
    for when, again in ((10.0, False), (11.0, True)):
        now[0] = when
        store.match(keys(1), BLOCK, again)
    assert {store._uses.asked_at(key) for key in keys(1)} == {10.0}
    store.match(keys(1), BLOCK)
    assert {store._uses.asked_at(key) for key in keys(1)} == {11.0}
    store.close()

"""What a store elsewhere has lost (evicted, purged, killed) is saved again by the engine that computes it again."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import request
from kv_engines import engine_with_store, long_tiny, serve
from kv_places import DEADLINE_S, Place

from headrace.kv import reclaim
from headrace.kv.client import RemoteStore
from headrace.kv.connector import StoreConnector
from headrace.kv.local import LocalStore
from headrace.kv.server import StoreServer
from headrace.models.context import Model

PROMPT = random.Random(3).choices(range(60), k=300)

Elsewhere = tuple[Callable[[], Any], Callable[[], int], Callable[[], object]]
"""Opens a store that is asked over a distance, counts what it holds, makes it lose everything."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return long_tiny("llama", tmp_path_factory.mktemp("long"))


class Far(Place):
    fast_lookups = False


@pytest.fixture(params=["bucket", "server"])
def elsewhere(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Elsewhere]:
    if request.param == "bucket":
        place = Far()
        yield lambda: place, lambda: len(place.values), place.values.clear
        return
    store = LocalStore(tmp_path / "served", 64 << 20)
    server = StoreServer(store, "tcp://127.0.0.1:*")
    thread = threading.Thread(target=server.run)
    thread.start()
    yield (
        lambda: RemoteStore(server.address, timeout_s=DEADLINE_S),
        lambda: len(list(store.names())),
        lambda: reclaim.purge(store, None),
    )
    server.stop()
    thread.join(DEADLINE_S)


def saved(connector: StoreConnector, count: Callable[[], int]) -> int:
    """What is stored once the saver has done its work."""
    assert connector._saver is not None
    end = time.monotonic() + DEADLINE_S
    while connector._saver._under_way:
        assert time.monotonic() < end, "the saver does not come to an end"
        time.sleep(0.002)
    return count()


def test_what_is_evicted_is_saved_again(model: Model, tmp_path: Path, elsewhere: Elsewhere) -> None:
    open_store, count, lose = elsewhere
    engine, connector = engine_with_store(model, tmp_path, store=open_store)
    assert connector.wait_opened(DEADLINE_S) is not None
    [first] = serve(engine, request(PROMPT))
    assert saved(connector, count) == 2
    for _ in range(2):
        lose()
        assert count() == 0
        engine.core.reset_prefix_cache(True)  # the pool has lost it too
        [again] = serve(engine, request(PROMPT))
        assert (again.num_cached_tokens, again.bits) == (0, first.bits)
        assert saved(connector, count) == 2
    engine.close()

"""A store that hangs costs who waits for it a deadline once, not every request after it."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness import request
from kv_engines import engine_with_store, long_tiny, serve
from kv_places import Place

from headrace.kv.connector import FETCH_THREADS, StoreConnector
from headrace.kv.session import StoreSession
from headrace.models.context import Model

PROMPT = random.Random(3).choices(range(60), k=300)
DEADLINE_S = 60.0
NEVER_S = 3600.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return long_tiny("llama", tmp_path_factory.mktemp("long"))


def until(done: Callable[[], Any]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not done():
        assert time.monotonic() < end
        time.sleep(0.005)


def asked(connector: StoreConnector) -> StoreSession:
    return connector.open(PROMPT, "", "", 0, lambda: None, "")


def answered(session: StoreSession) -> int:
    until(lambda: session.num_external_tokens() is not None)
    return session.num_external_tokens() or 0


def test_who_asks_while_every_thread_hangs_is_not_kept_waiting(model: Model, tmp_path: Path) -> None:
    place = Place()
    engine, connector = engine_with_store(model, tmp_path, store=lambda: place)
    serve(engine, request(PROMPT))
    until(lambda: len(place.values) == 2)
    place.gate.clear()
    connector.fetch_timeout_s = NEVER_S
    given_up = [asked(connector) for _ in range(FETCH_THREADS + 3)]  # three never come to a thread in time
    until(lambda: len(connector._at_work) == FETCH_THREADS)
    for session in given_up:
        session._deadline = 0.0
    connector._at_work.update(dict.fromkeys(connector._at_work, 0.0))
    assert [answered(session) for session in given_up] == [0] * len(given_up)
    assert asked(connector).num_external_tokens() == 0
    assert connector.counts()["late"] == FETCH_THREADS + 4
    reads = place.asked
    place.gate.set()
    until(lambda: not connector._at_work)
    assert place.asked - reads <= FETCH_THREADS  # what nobody waits for any more is not read
    again = asked(connector)
    assert answered(again) == 256
    again.cancel()
    engine.close()
    assert connector.budget.taken_bytes == 0


def test_a_store_that_takes_long_to_open_is_waited_for_once(model: Model, tmp_path: Path) -> None:
    opens, place = threading.Event(), Place()

    def open_late() -> Place:
        assert opens.wait(DEADLINE_S)
        return place

    engine, connector = engine_with_store(model, tmp_path, store=open_late, fetch_timeout_s=0.02)
    until(lambda: answered(asked(connector)) == 0 and connector._opens_slowly)
    connector.fetch_timeout_s = NEVER_S
    assert asked(connector).num_external_tokens() == 0
    opens.set()
    assert connector.wait_opened(DEADLINE_S) is not None
    serve(engine, request(PROMPT))
    until(lambda: len(place.values) == 2)
    again = asked(connector)
    assert answered(again) == 256
    again.cancel()
    engine.close()

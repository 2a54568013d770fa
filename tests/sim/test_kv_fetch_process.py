"""An engine whose values are fetched by a process beside it: it dies in mid-fetch, the answers stay the same."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from pathlib import Path

import pytest
from harness import request
from kv_engines import engine_with_store, long_tiny, serve

from headrace.kv.connector import StoreConnector
from headrace.kv.fetcher import Fetcher
from headrace.models.context import Model

PROMPTS = [random.Random(i).choices(range(60), k=300) for i in range(3)]
DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return long_tiny("llama", tmp_path_factory.mktemp("long"))


def fetcher_of(connector: StoreConnector) -> Fetcher:
    opened = connector.wait_opened(DEADLINE_S)
    assert opened is not None
    assert isinstance(opened.fetcher, Fetcher)
    return opened.fetcher


def kill_once_asked(fetcher: Fetcher) -> threading.Thread:
    """Stops the process now and kills it once a fetch waits for it."""
    life, end = fetcher.life, time.monotonic() + DEADLINE_S
    os.kill(life.pid, signal.SIGSTOP)

    def wait_and_kill() -> None:
        while not life._asked and time.monotonic() < end:
            time.sleep(0.01)
        os.kill(life.pid, signal.SIGKILL)

    thread = threading.Thread(target=wait_and_kill)
    thread.start()
    return thread


def test_killed_in_mid_fetch_the_prompt_is_computed_and_later_ones_are_loaded(model: Model, tmp_path: Path) -> None:
    first, _ = engine_with_store(model, tmp_path)
    truth = serve(first, *map(request, PROMPTS))
    first.close()
    engine, connector = engine_with_store(model, tmp_path, own_process=True)
    fetcher = fetcher_of(connector)
    life, killer = fetcher.life, kill_once_asked(fetcher)
    broken = serve(engine, request(PROMPTS[0]), request(PROMPTS[1][:100]))  # the second one has nothing to fetch
    killer.join()
    assert broken[0].bits == truth[0].bits
    assert broken[0].num_cached_tokens == 0
    end = time.monotonic() + DEADLINE_S
    while fetcher.life is life:
        assert time.monotonic() < end, "no other process is started"
        time.sleep(0.01)
    loaded = serve(engine, *map(request, PROMPTS[1:]))
    assert [o.bits for o in loaded] == [o.bits for o in truth[1:]]
    assert all(o.num_cached_tokens >= 256 for o in loaded)
    engine.close()


def test_an_abort_while_it_fetches_costs_nobody_anything(model: Model, tmp_path: Path) -> None:
    first, _ = engine_with_store(model, tmp_path)
    truth = serve(first, *map(request, PROMPTS))
    first.close()
    engine, connector = engine_with_store(model, tmp_path, own_process=True)
    fetcher = fetcher_of(connector)
    os.kill(fetcher.life.pid, signal.SIGSTOP)
    gone = request(PROMPTS[0])
    engine.submit(gone)
    end = time.monotonic() + DEADLINE_S
    while not fetcher.life._asked:
        assert time.monotonic() < end, "nothing is asked"
        engine.tick()
    engine.intake.end(gone.request_id, "abort")
    os.kill(fetcher.life.pid, signal.SIGCONT)
    loaded = serve(engine, *map(request, PROMPTS[1:]))
    assert [o.bits for o in loaded] == [o.bits for o in truth[1:]]
    assert all(o.num_cached_tokens >= 256 for o in loaded)
    engine.close()

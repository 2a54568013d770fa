"""Windows from another engine's memory equal computed ones, to the bit; an engine that is gone costs a recompute."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import make_engine, request, run
from kv_engines import engine_with_store, long_tiny, serve
from v41_config import dummy_model

from headrace import LLM, SamplingParams
from headrace.engine.engine import Engine
from headrace.kv.client import RemoteStore
from headrace.kv.connector import StoreConnector
from headrace.kv.host_memory import HostMemory
from headrace.kv.host_tier import HostTier
from headrace.kv.local import LocalStore
from headrace.kv.neighbours import Neighbours
from headrace.kv.server import StoreServer

PROMPT = random.Random(9).choices(range(3, 60), k=420)
FOUND = 384
PATIENCE_S = 60.0
FAMILIES: list[tuple[str, int | None]] = [("gemma3", 6), ("gemma3", 200), ("qwen2-sliding", 129), ("v41", None)]


@pytest.fixture(scope="module", params=FAMILIES, ids=lambda f: f"{f[0]}-{f[1]}")
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    family, window = request.param
    return dummy_model() if family == "v41" else long_tiny(family, tmp_path_factory.mktemp("long"), window)


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    server = StoreServer(LocalStore(tmp_path, 1 << 30), "tcp://127.0.0.1:*")
    thread = threading.Thread(target=server.run)
    thread.start()
    yield server.address
    server.stop()
    thread.join(60)


def engine(model: Any, folder: Path, address: str, tiers: list[HostTier]) -> tuple[Engine, StoreConnector]:
    def tier() -> HostTier:
        memory = HostMemory(1 << 30)
        neighbours = Neighbours(memory, address, "tcp://127.0.0.1:*", timeout_s=PATIENCE_S, engine_timeout_s=PATIENCE_S)
        tiers.append(HostTier(RemoteStore(address, timeout_s=PATIENCE_S), memory, neighbours, stores_windows=False))
        return tiers[-1]

    return engine_with_store(model, folder, num_blocks=600, max_model_len=512, token_budget=100, store=tier)


def wait_saved(connector: StoreConnector, count: int) -> None:
    end = time.monotonic() + 120
    while connector.counts()["saved"] < count:
        assert time.monotonic() < end, f"not saved within the time: {connector.counts()}"
        time.sleep(0.005)


def test_windows_come_from_the_engine_that_computed_them(model: Any, tmp_path: Path, address: str) -> None:
    tiers: list[HostTier] = []
    plain = make_engine(model, block_size=16, num_blocks=600, max_model_len=512, token_budget=100, graphs="none")
    [expected] = run(plain, [request(PROMPT)])
    plain.close()
    first, first_connector = engine(model, tmp_path, address, tiers)
    [told] = serve(first, request(PROMPT))
    wait_saved(first_connector, len(first_connector.specs) * FOUND // 128)
    second, connector = engine(model, tmp_path, address, tiers)
    [loaded] = serve(second, request(PROMPT))
    assert told.bits == loaded.bits == expected.bits
    assert loaded.num_cached_tokens == FOUND
    assert connector.counts()["hit_tokens"] == FOUND
    assert tiers[1].counts()["host_pulled"] > 0
    first.close()
    second.close()
    # the blocks are stored, the windows went with their engines
    late, connector = engine(model, tmp_path, address, tiers)
    [computed] = serve(late, request(PROMPT))
    late.close()
    assert computed.bits == expected.bits
    assert (computed.num_cached_tokens, connector.counts()["hit_tokens"]) == (0, 0)


@pytest.mark.parametrize("fetch", ["thread", "process"])
def test_as_a_user_has_it(address: str, fetch: str) -> None:
    """Two engines at a server that keeps their blocks, and each its windows: the second finds the first's."""
    settings: dict[str, Any] = {"kv_memory": 64 << 20, "max_model_len": 512, "kv_windows": "memory", "kv_fetch": fetch}
    params = SamplingParams(temperature=0, max_tokens=6, logprobs=0)
    prompt = {"prompt_token_ids": [3 + i % 900 for i in range(300)]}
    with (
        LLM("v41-mini", kv_store=address, **settings) as first,
        LLM("v41-mini", kv_store=address, **settings) as second,
    ):
        [told] = first.generate(prompt, params)
        server = RemoteStore(address, timeout_s=PATIENCE_S)
        end = time.monotonic() + 120
        while int(server.facts()["held_by_engines"]) < 4:  # two grains of two kinds
            assert time.monotonic() < end, f"not told of within the time: {server.facts()}"
            time.sleep(0.02)
        server.close()
        [loaded] = second.generate(prompt, params)
    assert (told.num_cached_tokens, loaded.num_cached_tokens) == (0, 256)
    assert told.outputs[0].token_ids == loaded.outputs[0].token_ids
    assert told.outputs[0].logprobs == loaded.outputs[0].logprobs

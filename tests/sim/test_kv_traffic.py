"""Faults between the engine, its store and the device: each ends as a recompute, with the right tokens and in time."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import Outcome, request
from kv_engines import FaultyMover, engine_with_store, long_tiny, serve
from msgspec import structs

from headrace.contract.errors import StoreError
from headrace.contract.picture import Picture
from headrace.kv import reclaim
from headrace.kv.client import RemoteStore
from headrace.kv.keys import tenant_tag
from headrace.kv.local import LocalStore
from headrace.kv.server import StoreServer
from headrace.lab.replay import replay
from headrace.models.context import Model
from headrace.obs.recorder import Recorder
from headrace.obs.recording import read_recording
from headrace.worker.pictures import Pictures

PROMPT = random.Random(3).choices(range(60), k=300)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return long_tiny("llama", tmp_path_factory.mktemp("long"))


@pytest.fixture
def folder(model: Model, tmp_path: Path) -> Path:
    """A store that holds PROMPT's grains."""
    ask(model, tmp_path, PROMPT)
    return tmp_path


def ask(
    model: Model, folder: Path, prompt: list[int], salt: str = "", pictures: tuple[Picture, ...] = (), **settings: Any
) -> Outcome:
    engine, _ = engine_with_store(model, folder, **settings)
    [outcome] = serve(engine, structs.replace(request(prompt), cache_salt=salt, pictures=pictures))
    engine.close()
    return outcome


@pytest.fixture(scope="module")
def truth(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return ask(model, tmp_path_factory.mktemp("none"), PROMPT)


def test_a_hit_has_the_same_bits(model: Model, folder: Path, truth: Outcome) -> None:
    loaded = ask(model, folder, PROMPT)
    assert loaded.bits == truth.bits
    assert (truth.num_cached_tokens, loaded.num_cached_tokens) == (0, 256)


@pytest.mark.parametrize("settings", [{"salt": "b"}, {"facts": "other weights"}, {"kv_dtype": "int16"}], ids=str)
def test_other_tenant_weights_or_dtype_miss(model: Model, folder: Path, settings: dict[str, Any]) -> None:
    assert ask(model, folder, PROMPT, **settings).num_cached_tokens == 0
    assert ask(model, folder, PROMPT, **settings).num_cached_tokens == 256  # and find their own


def test_pictures_shape_names_but_not_whose_they_are(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pictures, "take", lambda *_: None)  # this model has no eyes
    one, other = ((Picture(start=3, kinds=b"\0\0", grid=(1, 1), pixels=b"", id=name),) for name in ("one", "other"))
    for pictures, cached in ((one, 0), (one, 256), (other, 0), ((), 0)):
        assert ask(model, tmp_path, PROMPT, "a", pictures).num_cached_tokens == cached
    store = LocalStore(tmp_path, 64 << 20)
    assert reclaim.purge(store, tenant_tag("a")) == 6
    assert list(store.names()) == []
    store.close()


@pytest.mark.parametrize("length", [127, 128, 129, 255, 256, 257])
def test_prompts_around_a_grain(model: Model, folder: Path, length: int) -> None:
    prompt = PROMPT[:length]
    loaded = ask(model, folder, prompt)
    assert loaded.num_cached_tokens == min(length // 128 * 128, (length - 1) // 16 * 16)
    assert loaded.bits == ask(model, folder / "none", prompt).bits


@pytest.mark.parametrize("fault", ["refuse_writes", "break_writes"])
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("role", ["unified", "normal"])
def test_a_load_that_breaks_is_computed_anew(
    model: Model, folder: Path, truth: Outcome, fault: str, overlap: bool, role: str
) -> None:
    movers: list[FaultyMover] = []

    def wrap(inner: Any) -> FaultyMover:
        movers.append(FaultyMover(inner))
        setattr(movers[0], fault, True)
        return movers[0]

    engine, connector = engine_with_store(model, folder, wrap=wrap, overlap=overlap, role=role)
    outcomes = serve(engine, request(PROMPT), request(PROMPT[:200]))
    assert outcomes[0].bits == truth.bits
    assert connector.off
    assert serve(engine, request(PROMPT))[0].bits == truth.bits
    assert connector.budget.taken_bytes == 0
    engine.close()


def test_a_save_that_breaks_costs_the_save_only(model: Model, tmp_path: Path, truth: Outcome) -> None:
    def wrap(inner: Any) -> FaultyMover:
        mover = FaultyMover(inner)
        mover.break_reads = True
        return mover

    engine, connector = engine_with_store(model, tmp_path, wrap=wrap)
    assert serve(engine, request(PROMPT))[0].bits == truth.bits
    engine.close()
    assert (connector.counts()["saved"], connector.counts()["dropped"]) == (0, 2)


def test_a_store_that_cannot_be_opened_is_no_obstacle(model: Model, tmp_path: Path, truth: Outcome) -> None:
    def closed() -> LocalStore:
        raise StoreError("nowhere", "scripted")

    engine, connector = engine_with_store(model, tmp_path, store=closed)
    assert serve(engine, request(PROMPT))[0].bits == truth.bits
    assert connector.off
    engine.close()


class SlowStore:
    """A store whose reads hang until they are let go, or that loses values between the look-up and the read."""

    def __init__(self, inner: LocalStore, lost_from: int | None = None) -> None:
        self._inner, self._lost_from, self._reads = inner, lost_from, 0
        self.gate = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def get_leased(self, lease: int, key: bytes, kind: int) -> Any:
        assert lease == 0
        self._reads += 1
        if self._lost_from is None:
            self.gate.wait(60)
        elif self._reads > self._lost_from:
            return None
        return self._inner.get(key, kind)


def slow(model: Model, folder: Path, lost_from: int | None = None, **settings: Any) -> Any:
    stores: list[SlowStore] = []

    def open_store() -> SlowStore:
        from headrace.kv.keys import namespace_digest

        space = namespace_digest([("facts", "weights"), ("kv", "float32")])[:16]
        stores.append(SlowStore(LocalStore(folder, 1 << 30, name_space=space), lost_from))
        return stores[0]

    engine, connector = engine_with_store(model, folder, store=open_store, **settings)
    assert connector.wait_opened(60) is not None
    return engine, connector, stores[0]


@pytest.fixture
def hanging(model: Model, folder: Path) -> Iterator[Any]:
    engine, connector, store = slow(model, folder, fetch_timeout_s=0.05)
    yield engine, connector, store
    store.gate.set()
    engine.close()


def test_a_hanging_store_is_a_miss_at_the_deadline(hanging: Any, truth: Outcome) -> None:
    engine, connector, _ = hanging
    [outcome] = serve(engine, request(PROMPT))
    assert outcome.bits == truth.bits
    assert outcome.num_cached_tokens == 0
    assert connector.counts()["late"] == 1


def test_what_comes_late_is_given_back(hanging: Any) -> None:
    engine, connector, store = hanging
    serve(engine, request(PROMPT))
    store.gate.set()
    engine.close()
    assert connector.budget.taken_bytes == 0


def test_an_abort_while_loading_leaves_nothing_behind(model: Model, folder: Path) -> None:
    engine, connector, store = slow(model, folder)
    item = request(PROMPT)
    engine.submit(item)
    assert engine.tick() == []
    engine.abort(item.request_id)
    assert [delta.finish_reason for delta in engine.tick()] == ["abort"]
    assert engine.idle
    store.gate.set()
    engine.close()
    assert connector.budget.taken_bytes == 0


@pytest.mark.parametrize(("lost_from", "cached"), [(0, 0), (1, 128), (2, 256)])
def test_a_value_that_goes_between_look_up_and_read_shortens_the_prefix(
    model: Model, folder: Path, truth: Outcome, lost_from: int, cached: int
) -> None:
    engine, connector, _ = slow(model, folder, lost_from)
    [outcome] = serve(engine, request(PROMPT))
    engine.close()
    assert outcome.bits == truth.bits
    assert outcome.num_cached_tokens == cached
    assert connector.budget.taken_bytes == 0


def test_no_memory_for_a_fetch_is_a_miss_after_a_bounded_wait(model: Model, folder: Path, truth: Outcome) -> None:
    engine, connector = engine_with_store(model, folder, fetch_timeout_s=0.2)
    assert connector.wait_opened(60) is not None
    assert connector.budget.take(connector.budget.limit_bytes)  # everything is pinned
    [outcome] = serve(engine, request(PROMPT))
    assert outcome.bits == truth.bits
    assert outcome.num_cached_tokens == 0
    connector.budget.give(connector.budget.limit_bytes)
    engine.close()


def test_a_pool_too_small_for_the_load_computes(model: Model, folder: Path, truth: Outcome) -> None:
    engine, _ = engine_with_store(model, folder, num_blocks=21)
    busy = request([1] * 40, max_tokens=30)
    engine.submit(busy)
    engine.tick()
    [outcome] = serve(engine, request(PROMPT))
    assert outcome.bits == truth.bits
    engine.close()


def test_preemption_while_saving_keeps_the_bits(model: Model, tmp_path: Path) -> None:
    prompts = [random.Random(i).choices(range(60), k=150) for i in range(4)]
    engine, connector = engine_with_store(model, tmp_path, num_blocks=22, full_sequence_must_fit=False)
    assert connector.wait_opened(60) is not None
    first = serve(engine, *(request(p, max_tokens=60) for p in prompts))
    assert engine.core.num_preemptions > 0
    engine.close()
    assert connector.counts()["saved"] >= 4
    again, _ = engine_with_store(model, tmp_path)
    second = serve(again, *(request(p, max_tokens=60) for p in prompts))
    again.close()
    assert [o.bits for o in second] == [o.bits for o in first]
    assert all(o.num_cached_tokens == 128 for o in second)


def test_a_recording_with_loads_replays(model: Model, folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "flight.jsonl"
    settings = {"num_blocks": 200, "block_size": 16, "groups": [(0, 0)], "max_model_len": 1024}
    engine, _ = engine_with_store(model, folder, observer=Recorder.open(path, settings))
    serve(engine, request(PROMPT), request([*PROMPT[:290], 1, 2, 3]))
    engine.close()
    recording = read_recording(path)
    assert any(type(event).__name__ == "Imported" for event in recording.events)
    report = replay(recording)
    assert report.ok, str(report.difference)


def test_two_engines_share_a_store_through_a_server(model: Model, tmp_path: Path, truth: Outcome) -> None:
    server = StoreServer(LocalStore(tmp_path, 1 << 30), "tcp://127.0.0.1:*")
    thread = threading.Thread(target=server.run)
    thread.start()
    outcomes = []
    for _ in range(2):
        engine, connector = engine_with_store(model, tmp_path, store=lambda: RemoteStore(server.address, timeout_s=60))
        outcomes += serve(engine, request(PROMPT))
        assert serve(engine, request(PROMPT))[0].bits == truth.bits
        engine.close()
        assert connector.budget.taken_bytes == 0
    server.stop()
    thread.join(10)
    assert [o.bits for o in outcomes] == [truth.bits] * 2
    assert [o.num_cached_tokens for o in outcomes] == [0, 256]


def test_a_server_that_is_gone_is_a_miss(model: Model, tmp_path: Path, truth: Outcome) -> None:
    nobody = RemoteStore(f"ipc://{tmp_path}/nobody", timeout_s=0.2)
    engine, connector = engine_with_store(model, tmp_path, store=lambda: nobody)
    assert serve(engine, request(PROMPT))[0].bits == truth.bits
    engine.close()
    assert connector.counts()["saved"] == 0


def test_an_engine_that_ends_before_its_store_is_open_does_not_wait(model: Model, tmp_path: Path) -> None:
    gate, stores = threading.Event(), []

    def late() -> LocalStore:
        gate.wait(60)
        stores.append(LocalStore(tmp_path, 1 << 30))
        return stores[0]

    engine, connector = engine_with_store(model, tmp_path, store=late, fetch_timeout_s=0.1)
    [outcome] = serve(engine, request(PROMPT))
    assert outcome.num_cached_tokens == 0
    assert connector.counts()["dropped"] > 0
    engine.close()
    assert not stores
    gate.set()
    assert connector._ready.wait(60)
    assert not stores[0].put(bytes(32), 0, np.zeros(5, np.uint8))  # closed again

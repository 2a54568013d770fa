"""An engine and a store that answers, hangs, is dead or loses what it had just promised."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import pytest
from harness import make_engine, request, run
from kv_engines import engine_with_store, long_tiny, serve

from headrace.kv.client import RemoteStore
from headrace.kv.keys import namespace_digest
from headrace.kv.local import LocalStore
from headrace.kv.records import RecordKind

PROMPT = random.Random(3).choices(range(60), k=300)
SPACE = namespace_digest([("facts", "weights"), ("kv", "float32")])[:16]


class Between:
    """A local store. ``gate``: reads wait for it; ``lose``: (kind, which read of that kind) that finds nothing."""

    def __init__(self, folder: Path, lose: tuple[RecordKind, int] | None = None) -> None:
        self._inner = LocalStore(folder, 1 << 30, name_space=SPACE)
        self._lose, self._reads = lose, dict[int, int]()
        self.gate = threading.Event()
        self.gate.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def get_leased(self, lease: int, key: bytes, kind: int) -> Any:
        assert self.gate.wait(60)
        self._reads[kind] = self._reads.get(kind, 0) + 1
        lost = self._lose == (RecordKind(kind), self._reads[kind])
        return None if lost else self._inner.get_leased(lease, key, kind)


@pytest.mark.parametrize("peer", ["alive", "slow", "dead"])
def test_an_abort_while_loading_leaves_nothing_behind(tmp_path: Path, peer: str) -> None:
    model = long_tiny("llama", tmp_path)
    first, _ = engine_with_store(model, tmp_path / "kv")
    serve(first, request(PROMPT))
    first.close()
    store: Any = Between(tmp_path / "kv")
    if peer == "slow":
        store.gate.clear()
    if peer == "dead":
        store.close()
        store = RemoteStore(f"ipc://{tmp_path}/nobody", timeout_s=0.2)
    engine, connector = engine_with_store(model, tmp_path / "kv", store=lambda: store)
    for turns in range(4):
        item = request(PROMPT)
        engine.submit(item)
        for _ in range(turns):
            engine.tick()
        engine.abort(item.request_id)
        serve(engine)
    if peer == "slow":
        store.gate.set()
    assert serve(engine, request(PROMPT))[0].bits
    engine.close()
    assert connector.budget.taken_bytes == 0


@pytest.mark.parametrize(
    ("lose", "cached"),
    [
        (None, 256),
        ((RecordKind.STATE, 1), 0),  # every longer prefix's window reaches it
        ((RecordKind.STATE, 2), 128),
        ((RecordKind.BLOCK, 2), 128),
    ],
    ids=str,
)
def test_the_usable_prefix_is_the_least_over_kinds_after_the_reads(
    tmp_path: Path, lose: tuple[RecordKind, int] | None, cached: int
) -> None:
    model = long_tiny("gemma3", tmp_path, 200)
    plain = make_engine(model, block_size=16)
    [truth] = run(plain, [request(PROMPT)])
    plain.close()
    first, _ = engine_with_store(model, tmp_path / "kv")
    serve(first, request(PROMPT))
    first.close()
    engine, connector = engine_with_store(model, tmp_path / "kv", store=lambda: Between(tmp_path / "kv", lose))
    [outcome] = serve(engine, request(PROMPT))
    engine.close()
    assert outcome.bits == truth.bits
    assert outcome.num_cached_tokens == cached
    assert connector.budget.taken_bytes == 0

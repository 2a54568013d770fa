"""A request's class, from the engine's door to the store: what agents leave is forgotten sooner than what chats do."""

from __future__ import annotations

import random
from pathlib import Path

from harness import request
from kv_engines import engine_with_store, long_tiny, serve
from msgspec import structs

from headrace.contract.request import KVClass
from headrace.kv.ages import DAY_S
from headrace.kv.local import LocalStore
from headrace.models.context import Model


def ask(model: Model, folder: Path, seed: int, kv_class: KVClass, now_s: float) -> int:
    """Tokens that a new engine finds of a prompt at a moment."""
    store = LocalStore(folder, 1 << 30, clock=lambda: now_s)
    engine, _ = engine_with_store(model, folder, store=lambda: store)
    prompt = random.Random(seed).choices(range(60), k=300)
    [outcome] = serve(engine, structs.replace(request(prompt), kv_class=kv_class))
    engine.close()
    return int(outcome.num_cached_tokens)


def test_ages_differ_by_class(tmp_path: Path) -> None:
    model = long_tiny("llama", tmp_path)
    classes: tuple[KVClass, ...] = ("chat", "agent")
    start = 1e9
    assert [ask(model, tmp_path, seed, kind, start) for seed, kind in enumerate(classes)] == [0, 0]
    assert [ask(model, tmp_path, seed, kind, start + 2.9 * DAY_S) for seed, kind in enumerate(classes)] == [256, 256]
    later = start + 6 * DAY_S  # both were used 3.1 days ago
    assert [ask(model, tmp_path, seed, kind, later) for seed, kind in enumerate(classes)] == [256, 0]


def test_the_class_is_that_of_who_stored_it(tmp_path: Path) -> None:
    """What is stored is not stored again, so a later request of the other class changes nothing."""
    model = long_tiny("llama", tmp_path)
    assert [ask(model, tmp_path, 7, kind, 1e9) for kind in ("agent", "chat")] == [0, 256]  # type: ignore[arg-type]
    assert ask(model, tmp_path, 7, "chat", 1e9 + 3.1 * DAY_S) == 0

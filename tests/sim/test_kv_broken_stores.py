"""A store whose calls raise what nobody foresaw: the engine computes, its loop lives, and nothing is left behind."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, NoReturn

import pytest
from harness import request
from kv_engines import ROOMY, engine_with_store, long_tiny, serve

from headrace.kv.keys import namespace_digest
from headrace.kv.local import LocalStore
from headrace.models.context import Model

PROMPT = random.Random(3).choices(range(60), k=300)
SPACE = namespace_digest([("facts", "weights"), ("kv", "float32")])[:16]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return long_tiny("llama", tmp_path_factory.mktemp("long"))


class Broken:
    """Raises from one call, works otherwise."""

    def __init__(self, inner: LocalStore, call: str) -> None:
        self._inner, self._call = inner, call

    def __getattr__(self, name: str) -> Any:
        return self._fail if name == self._call else getattr(self._inner, name)

    @staticmethod
    def _fail(*_: Any, **__: Any) -> NoReturn:
        raise LookupError("scripted")


@pytest.mark.parametrize("call", ["match", "get_leased", "release", "has", "put", "close"])
def test_nothing_a_store_raises_reaches_the_loop(model: Model, tmp_path: Path, call: str) -> None:
    engine, _ = engine_with_store(model, tmp_path)
    [truth] = serve(engine, request(PROMPT))
    engine.close()
    store = LocalStore(tmp_path, ROOMY, name_space=SPACE)
    engine, connector = engine_with_store(model, tmp_path, store=lambda: Broken(store, call))
    assert connector.wait_opened(60) is not None
    for prompt in (PROMPT, PROMPT[:150], PROMPT):
        [outcome] = serve(engine, request(prompt))
    assert outcome.bits == truth.bits
    engine.close()
    assert connector.budget.taken_bytes == 0
    store.close()

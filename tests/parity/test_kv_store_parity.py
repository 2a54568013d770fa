"""Loaded from a store equals computed, to the bit: any block size, family and dtype, after a restart."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from harness import make_engine, request, run
from kv_engines import engine_with_store, long_tiny, serve

from headrace.models.context import Model

PROMPT = random.Random(7).choices(range(60), k=420)


FAMILIES = [("llama", None), ("qwen3", None), ("gemma3", 6), ("gemma3", 200), ("qwen2-sliding", 129)]


@pytest.fixture(scope="module", params=FAMILIES, ids=lambda f: f"{f[0]}-{f[1]}")
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    family, window = request.param
    return long_tiny(family, tmp_path_factory.mktemp("long"), window)


def prompts() -> list[list[int]]:
    """One long prompt, one that shares two grains of it and some, one of the exact length of its grains."""
    return [PROMPT, PROMPT[:300] + [5] * 30, PROMPT[:256], PROMPT[:40]]


@pytest.mark.parametrize(("role", "overlap"), [("unified", True), ("unified", False), ("normal", True)])
def test_a_restarted_engine_loads_what_the_first_one_computed(
    model: Model, tmp_path: Path, role: str, overlap: bool
) -> None:
    plain = make_engine(model, block_size=16, token_budget=100)
    expected = [run(plain, [request(p)])[0] for p in prompts()]
    plain.close()
    first, _ = engine_with_store(model, tmp_path, token_budget=100, role=role, overlap=overlap)
    told = serve(first, *(request(p) for p in prompts()))
    first.close()
    assert [o.bits for o in told] == [o.bits for o in expected]
    again, connector = engine_with_store(model, tmp_path, token_budget=100, role=role, overlap=overlap)
    loaded = serve(again, *(request(p) for p in prompts()))
    again.close()
    assert [o.bits for o in loaded] == [o.bits for o in expected]
    assert loaded[0].num_cached_tokens == 384
    assert loaded[1].num_cached_tokens >= 256  # a block more where its twin had computed it just before
    windows = any(group.window for group in model.kv_layout.groups)
    assert loaded[2].num_cached_tokens >= (128 if windows else 240)  # a token is left to compute
    assert connector.counts()["hit_tokens"] >= 384


def test_who_fetches_changes_no_bit(model: Model, tmp_path: Path) -> None:
    first, _ = engine_with_store(model, tmp_path, token_budget=100)
    expected = serve(first, *(request(p) for p in prompts()))
    first.close()
    again, connector = engine_with_store(model, tmp_path, token_budget=100, own_process=True)
    loaded = serve(again, *(request(p) for p in prompts()))
    again.close()
    assert [o.bits for o in loaded] == [o.bits for o in expected]
    assert loaded[0].num_cached_tokens == 384
    assert connector.counts()["hit_tokens"] >= 384


@pytest.mark.parametrize(("block_size", "other"), [(32, 4), (4, 128), (128, 32)])
def test_records_fit_any_block_size(model: Model, tmp_path: Path, block_size: int, other: int) -> None:
    first, _ = engine_with_store(model, tmp_path, block_size=block_size, num_blocks=600, kv_dtype="int16")
    [expected] = serve(first, request(PROMPT))
    first.close()
    again, _ = engine_with_store(model, tmp_path, block_size=other, num_blocks=600, kv_dtype="int16")
    [loaded] = serve(again, request(PROMPT))
    again.close()
    assert loaded.bits == expected.bits
    assert loaded.num_cached_tokens == 384

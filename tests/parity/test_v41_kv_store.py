"""V4.1's records in a store: what a restarted engine loads equals what it would compute, to the bit, at every kind of
place; other block sizes and pictures find nothing."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import make_engine, request, run
from kv_engines import engine_with_store, serve
from v41_config import dummy_model

from headrace import LLM, SamplingParams
from headrace.contract.request import Request
from headrace.kv.keys import GRAIN
from headrace.kv.records import Match, RecordKind, block_specs
from headrace.models.deepseek_v41.forward import V41Model
from headrace.models.deepseek_v41.records import kv_layout

PROMPT = random.Random(8).choices(range(3, 300), k=400)
LENGTHS = (127, 128, 129, 130, 255, 256, 257, 259, 400)


@pytest.fixture(scope="module")
def small() -> V41Model:
    return dummy_model()


def requests() -> list[Request]:
    """Beginnings of one text, each going on in its own way."""
    return [request([*PROMPT[:n], n % 7 + 3], max_tokens=5, logprobs=0) for n in LENGTHS]


@pytest.mark.parametrize("block_size", [2, 16, 128])
def test_a_restarted_engine_loads_what_the_first_one_computed(small: V41Model, tmp_path: Path, block_size: int) -> None:
    room: dict[str, Any] = {"block_size": block_size, "num_blocks": 12_000 // block_size, "max_model_len": 512}
    plain = make_engine(small, graphs="none", prefix_caching=False, **room)
    expected = [run(plain, [item])[0].bits for item in requests()]
    plain.close()
    first, _ = engine_with_store(small, tmp_path, token_budget=100, **room)
    told = [serve(first, item)[0] for item in requests()[-1:]]
    first.close()
    assert told[0].bits == expected[-1]
    for item, wanted in zip(requests(), expected):  # each by an engine that has nothing else
        again, connector = engine_with_store(small, tmp_path, token_budget=100, **room)
        [loaded] = serve(again, item)
        again.close()
        assert loaded.bits == wanted
        assert connector.counts()["hit_tokens"] == loaded.num_cached_tokens
        assert loaded.num_cached_tokens == (len(item.prompt_token_ids) - 1) // GRAIN * GRAIN


def test_what_decoding_sealed_is_found_too(small: V41Model, tmp_path: Path) -> None:
    """Windows and look-back records of a grain that was generated, not prefilled."""
    room: dict[str, Any] = {"num_blocks": 900, "max_model_len": 512}
    first, _ = engine_with_store(small, tmp_path, **room)
    [told] = serve(first, request(PROMPT[:100], max_tokens=60))
    first.close()
    longer = [*PROMPT[:100], *told.token_ids]
    plain = make_engine(small, graphs="none", prefix_caching=False, block_size=16, **room)
    [expected] = run(plain, [request(longer, max_tokens=5)])
    plain.close()
    again, _ = engine_with_store(small, tmp_path, **room)
    [loaded] = serve(again, request(longer, max_tokens=5))
    again.close()
    assert loaded.bits == expected.bits
    assert loaded.num_cached_tokens == GRAIN


def test_kinds_of_records(small: V41Model) -> None:
    """Compressed blocks whole; of look-back groups only the end of a grain; windows as far as they reach."""
    layout = kv_layout(small.config, drafts=True)
    block, look_back, window = block_specs(layout, 8)
    assert [spec.kind for spec in (block, look_back, window)] == [RecordKind.BLOCK, RecordKind.AUX, RecordKind.STATE]
    assert [spec.match for spec in (block, look_back, window)] == [Match.ALL, Match.TRAILING, Match.TRAILING]
    assert [spec.first_block(8) for spec in (block, look_back, window)] == [0, 15, 14]
    assert sorted((*block.groups, *look_back.groups, *window.groups)) == list(range(len(layout.groups)))
    assert block.bytes_per_grain == GRAIN * layout.token_bytes[0]
    assert look_back.bytes_per_grain == sum(layout.used_bytes(group, 8) for group in look_back.groups)


def test_as_a_user_has_it(tmp_path: Path) -> None:
    """A named store, two launches; then another block size, which shares nothing with the first."""
    params, found = SamplingParams(temperature=0, max_tokens=6, logprobs=0), []
    for block_size in (32, 32, 16):
        settings: dict[str, Any] = {"kv_memory": 64 << 20, "max_model_len": 512, "block_size": block_size}
        with LLM("v41-mini", kv_store=str(tmp_path), **settings) as llm:
            [output] = llm.generate({"prompt_token_ids": [3 + i % 900 for i in range(300)]}, params)
            found.append((output.num_cached_tokens, output.outputs[0].token_ids, output.outputs[0].logprobs))
    assert [cached for cached, *_ in found] == [0, 256, 0]
    assert found[0][1:] == found[1][1:] == found[2][1:]


def test_only_the_same_picture_is_found(tmp_path: Path) -> None:
    params, found = SamplingParams(temperature=0, max_tokens=6, logprobs=0), []
    text = "<｜deepseek_image｜>\n" + "What did Alice see? " * 40
    for seed in (1, 2, 1):
        image = np.random.default_rng(seed).integers(0, 256, (70, 112, 3), dtype=np.uint8)
        with LLM("v41-mini", kv_store=str(tmp_path), kv_memory=64 << 20, max_model_len=512) as llm:
            [output] = llm.generate({"prompt": text, "images": [image]}, params)
            found.append((output.num_cached_tokens, output.outputs[0].token_ids, output.outputs[0].logprobs))
    assert [cached for cached, *_ in found] == [0, 0, 128]
    assert found[2][1:] == found[0][1:] != found[1][1:]

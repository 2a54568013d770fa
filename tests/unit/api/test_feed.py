"""The loop behind generate and stream: lazy, bounded, and clean when its caller leaves."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from cli_models import write_model

from headrace import LLM, EngineConfig, SamplingParams
from headrace.api.prompts import Prepared
from headrace.contract.errors import ConfigError, EngineDead

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    model = write_model(tmp_path_factory.mktemp("model"))
    with LLM(model, kv_memory=4 << 20, num_threads=1, max_seqs=4) as loaded:
        yield loaded


def blocks_in_use(llm: LLM) -> int:
    llm.engine.core.reset_prefix_cache()
    return llm.pool.num_blocks - 1 - llm.engine.core.num_free_blocks


def test_a_stream_grows_into_what_generate_returns(llm: LLM) -> None:
    [whole] = llm.generate("Hello", GREEDY)
    texts, last = [], None
    for output in llm.stream("Hello", GREEDY):
        texts.append(output.outputs[0].text)
        last = output
    assert last is not None
    assert last.finished
    assert last.outputs[0].token_ids == whole.outputs[0].token_ids
    assert texts[-1] == whole.outputs[0].text
    assert all(later.startswith(earlier) for earlier, later in pairwise(texts))


def test_leaving_a_stream_aborts_and_frees(llm: LLM) -> None:
    long = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)
    stream = llm.stream("Hello", long)
    next(stream)
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert llm.engine.idle
    assert blocks_in_use(llm) == 0


@pytest.mark.parametrize("window", [1, 3, 100])
def test_a_window_bounds_how_far_the_source_is_read(llm: LLM, window: int) -> None:
    pulled = finished = 0

    def source() -> Iterator[Prepared]:
        nonlocal pulled
        for i in range(40):
            pulled += 1
            yield llm.prepare(f"Prompt {i}", GREEDY)

    ids = []
    for news in llm.feed(source(), window=window):
        finished += sum(output.finished for output in news)
        ids += [output.request_id for output in news if output.finished]
        assert pulled - finished <= window
    assert pulled == finished == len(set(ids)) == 40


def test_choices_are_reported_once_when_the_last_is_done(llm: LLM) -> None:
    params = SamplingParams(n=3, temperature=1, seed=3, max_tokens=9, ignore_eos=True)
    finished = [o for news in llm.feed([llm.prepare("Hello", params)]) for o in news if o.finished]
    assert len(finished) == 1
    assert [len(choice.token_ids) for choice in finished[0].outputs] == [9, 9, 9]
    assert finished[0].outputs[0].token_ids != finished[0].outputs[1].token_ids


def test_a_source_that_fails_leaves_the_engine_clean(llm: LLM) -> None:
    def source() -> Iterator[Prepared]:
        yield llm.prepare("Hello", GREEDY)
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        list(llm.feed(source()))
    assert llm.engine.idle
    assert blocks_in_use(llm) == 0
    assert llm.generate("Hello", GREEDY)[0].finished


def test_a_whole_configuration_stands_alone() -> None:
    with pytest.raises(ConfigError, match="give it alone"):
        LLM("some-model", config=EngineConfig())


def test_a_closed_llm_feeds_nothing(tmp_path: Path) -> None:
    llm = LLM(write_model(tmp_path), kv_memory=1 << 20, num_threads=1)
    llm.close()
    with pytest.raises(EngineDead):
        llm.feed([])

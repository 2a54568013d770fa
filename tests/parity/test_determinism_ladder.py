"""Batch invariance on bits of logprobs, rung by rung, at lengths where attention is cut in many ways.

Each rung: one request under some other circumstance gives the same bits as alone, whole and cold.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import tiny_models
from harness import Outcome, make_engine, request, run

from headrace import _kernels
from headrace.contract.request import Request
from headrace.kernels.resolve import resolve_ops
from headrace.models.context import Model
from headrace.models.registry import load_model
from headrace.models.weights import open_checkpoint

BLOCK = 16
LONG = 5000


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def long_model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A tiny model with a context of thousands; gemma3 has sliding windows as well."""
    config = {**tiny_models.CONFIGS[request.param], "max_position_embeddings": LONG}
    folder = tmp_path_factory.mktemp("long") / request.param
    path = tiny_models.write_directory(folder, config, tiny_models.random_tensors(config))
    return load_model(open_checkpoint(path), resolve_ops("cpu", strict=True), exact=True)


def tokens(length: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(61) for _ in range(length)]


def target(length: int = 700, **wishes: object) -> Request:
    """Seeded and sampled: a changed bit shows in ids too."""
    return request(tokens(length, 1), temperature=1.0, seed=77, max_tokens=6, logprobs=3, **wishes)


def engine(model: Model, **limits: object):  # type: ignore[no-untyped-def]
    groups = len(model.kv_layout.groups)
    settings: dict[str, object] = {"block_size": BLOCK, "num_blocks": 1400 * groups, "max_model_len": LONG}
    return make_engine(model, **(settings | limits))


def bits_of(model: Model, requests: list[Request], which: int = 0, **limits: object) -> object:
    opened = engine(model, **limits)
    outcome: Outcome = run(opened, requests)[which]
    opened.close()
    return outcome.bits


def alone(model: Model, item: Request) -> object:
    plain = {"overlap": False, "graphs": "none", "prefix_caching": False, "token_budget": LONG}
    return bits_of(model, [item], **plain)


def neighbours(count: int, seed: int) -> list[Request]:
    rng = random.Random(seed)
    kinds = [{}, {"temperature": 1.3, "seed": 5}, {"repetition_penalty": 1.2}, {"prompt_logprobs": 1}]
    return [request(tokens(rng.randrange(1, 300), seed + i), **kinds[i % 4]) for i in range(count)]  # type: ignore[arg-type]


def test_alone_and_at_each_index_of_a_batch(long_model: Model) -> None:
    expected = alone(long_model, target())
    for index in range(7):
        batch = neighbours(6, seed=index)
        batch.insert(index, target())
        assert bits_of(long_model, batch, index) == expected, f"index {index}"


@pytest.mark.parametrize("limits", [{"token_budget": b} for b in (64, 129, 500)] + [{"long_prefill_threshold": 37}])
def test_chunk_boundaries(long_model: Model, limits: dict[str, object]) -> None:
    expected = alone(long_model, target(prompt_logprobs=1))
    assert bits_of(long_model, [target(prompt_logprobs=1)], **limits) == expected
    assert bits_of(long_model, [*neighbours(3, 3), target(prompt_logprobs=1)], 3, **limits) == expected


@pytest.mark.parametrize("shared", [1, 511, 2048, 4097, BLOCK, 32 * BLOCK, 256 * BLOCK])
def test_prefix_hit_and_cold(long_model: Model, shared: int) -> None:
    """What a hit brings is a whole number of blocks; one token is always left to compute."""
    prompt = [*tokens(shared, 9), *tokens(5, 10)]
    item = lambda: request(prompt, temperature=1.0, seed=3, max_tokens=4, logprobs=3)  # noqa: E731
    opened = engine(long_model)
    run(opened, [request([*tokens(shared, 9), 60, 59], max_tokens=1)])
    [warm] = run(opened, [item()])
    opened.close()
    assert warm.num_cached_tokens == shared // BLOCK * BLOCK
    assert warm.bits == alone(long_model, item())


def test_the_whole_prompt_cached(long_model: Model) -> None:
    """Length an exact multiple of blocks, all of it a hit: the last block is computed again."""
    prompt = tokens(32 * BLOCK, 4)
    opened = engine(long_model)
    first, again = (run(opened, [request(prompt, logprobs=2)])[0] for _ in range(2))
    opened.close()
    assert again.num_cached_tokens == 31 * BLOCK
    assert again.bits == first.bits == alone(long_model, request(prompt, logprobs=2))


@pytest.mark.parametrize("length", [1, 511, 2048])
def test_generated_tokens_scored_as_a_prompt(long_model: Model, length: int) -> None:
    prompt = tokens(length, 6)
    opened = engine(long_model, token_budget=200)
    made = run(opened, [*neighbours(3, 8), request(prompt, max_tokens=8, logprobs=0, temperature=1.0, seed=4)])[3]
    scoring = request([*prompt, *made.token_ids], max_tokens=1, prompt_logprobs=0)
    scored = run(opened, [*neighbours(2, 9), scoring])[2]
    opened.close()
    assert scored.prompt_logprobs[length:] == made.logprobs


@pytest.mark.parametrize("overlap", [False, True])
def test_preempt_and_resume(long_model: Model, overlap: bool) -> None:
    """A pool in which four prompts fit and their answers do not."""
    requests = [request(tokens(300, 1 + i), max_tokens=100, temperature=1.0, seed=i) for i in range(4)]
    expected = [alone(long_model, item) for item in requests]
    limits: dict[str, object] = {"num_blocks": 60 + 16 * len(long_model.kv_layout.groups), "max_model_len": 450}
    opened = engine(long_model, overlap=overlap, token_budget=256, full_sequence_must_fit=False, **limits)
    outcomes = run(opened, requests)
    preemptions = opened.core.num_preemptions
    opened.close()
    assert preemptions > 0
    assert [outcome.bits for outcome in outcomes] == expected


@pytest.mark.parametrize("length", [700, 4097])
def test_thread_counts(long_model: Model, length: int) -> None:
    expected = alone(long_model, target(length))
    before = _kernels.num_threads()
    try:
        for threads in (1, 2, 3, 5):
            _kernels.set_num_threads(threads)
            assert bits_of(long_model, [target(length), *neighbours(2, 30)]) == expected, f"{threads} threads"
    finally:
        _kernels.set_num_threads(before)


@pytest.mark.parametrize("block_size", [1, 7, 32])
def test_block_tables(long_model: Model, block_size: int) -> None:
    """Other block sizes, and a free queue in disorder."""
    groups = len(long_model.kv_layout.groups)
    opened = engine(long_model, block_size=block_size, num_blocks=(4000 // block_size + 40) * groups)
    for round_ in range(3):
        run(opened, neighbours(5, 40 + round_))
        assert run(opened, [target()])[0].bits == alone(long_model, target())
    opened.close()


def test_a_thousand_samples_among_changing_neighbours_are_one(tiny: Callable[[str], Model]) -> None:
    rng = random.Random(1000)
    opened = make_engine(tiny("llama+blocks"), num_blocks=900, token_budget=48, max_seqs=24)
    seen: set[object] = set()
    for _ in range(25):
        same = [request(tokens(9, 2), temperature=1.2, seed=123, max_tokens=7, logprobs=2) for _ in range(40)]
        others = [
            request(tokens(rng.randrange(1, 40), rng.randrange(999)), temperature=rng.choice([0.0, 1.0]), seed=5)
            for _ in range(rng.randrange(12))
        ]
        mixed = [*same, *others]
        rng.shuffle(mixed)
        wanted = {id(item) for item in same}
        seen |= {outcome.bits for item, outcome in zip(mixed, run(opened, mixed)) if id(item) in wanted}
    opened.close()
    assert len(seen) == 1

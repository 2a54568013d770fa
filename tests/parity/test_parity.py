"""How a step is cut, batched, cached, preempted, threaded or overlapped does not change one bit of the results.

Every comparison is on ids and on the bits of logprobs, on the ``cpu`` backend, over a pool of NaNs.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from harness import Outcome, make_engine, request, run

from headrace import _kernels
from headrace.contract.request import Request
from headrace.models.context import Model
from headrace.worker.graphs import POLICIES


def prompts(count: int, seed: int = 5, low: int = 1, high: int = 40) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(61) for _ in range(rng.randrange(low, high))] for _ in range(count)]


def wishes(number: int) -> dict[str, object]:
    """Greedy, sampled, filtered, penalised, scored: one of each in turn."""
    kinds: list[dict[str, object]] = [
        {},
        {"temperature": 1.0, "seed": 11},
        {"temperature": 0.7, "top_k": 7, "top_p": 0.9, "min_p": 0.01, "seed": 12},
        {"prompt_logprobs": 2},
        {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.2},
        {"logit_bias": {3: 2.5}, "banned_token_ids": [4, 5], "min_tokens": 4},
    ]
    return kinds[number % len(kinds)]


def requests(count: int = 8) -> list[Request]:
    return [request(p, eos_ids=(2, 3), **wishes(i)) for i, p in enumerate(prompts(count))]


def bits(outcomes: list[Outcome]) -> list[object]:
    return [outcome.bits for outcome in outcomes]


def singles(model: Model, **limits: object) -> list[object]:
    """Each request alone, synchronously, prefill whole, nothing cached."""
    out: list[object] = []
    for item in requests():
        engine = make_engine(model, overlap=False, prefix_caching=False, graphs="none", **limits)
        out += bits(run(engine, [item]))
        engine.close()
    return out


@pytest.fixture
def expected(model: Model) -> list[object]:
    return singles(model)


@pytest.mark.parametrize("overlap", [False, True])
def test_a_batch_of_eight_equals_eight_singles(model: Model, expected: list[object], overlap: bool) -> None:
    engine = make_engine(model, overlap=overlap)
    assert bits(run(engine, requests())) == expected
    engine.close()


@pytest.mark.parametrize("budget", [1, 3, 7, 16, 33])
def test_chunked_equals_whole(model: Model, expected: list[object], budget: int) -> None:
    engine = make_engine(model, token_budget=budget)
    assert bits(run(engine, requests())) == expected
    engine.close()


@pytest.mark.parametrize("max_seqs", [1, 2, 3, 5])
def test_batch_sizes_do_not_matter(model: Model, expected: list[object], max_seqs: int) -> None:
    engine = make_engine(model, max_seqs=max_seqs, token_budget=24)
    assert bits(run(engine, requests())) == expected
    engine.close()


@pytest.mark.parametrize("block_size", [1, 3, 16, 64])
def test_block_sizes_do_not_matter(model: Model, expected: list[object], block_size: int) -> None:
    engine = make_engine(model, block_size=block_size, num_blocks=1000)
    assert bits(run(engine, requests())) == expected
    engine.close()


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_thread_counts_do_not_matter(model: Model, expected: list[object], threads: int) -> None:
    before = _kernels.num_threads()
    _kernels.set_num_threads(threads)
    try:
        engine = make_engine(model)
        assert bits(run(engine, requests())) == expected
        engine.close()
    finally:
        _kernels.set_num_threads(before)


def test_block_tables_do_not_matter(model: Model, expected: list[object]) -> None:
    """The same engine again and again: each round finds the free queue in another order."""
    engine = make_engine(model, prefix_caching=False, num_blocks=300)
    for _ in range(4):
        assert bits(run(engine, requests())) == expected
        run(engine, [request(p, max_tokens=3) for p in prompts(5, seed=random.randrange(99))])
    engine.close()


@pytest.mark.parametrize("overlap", [False, True])
def test_preempted_equals_not_preempted(model: Model, expected: list[object], overlap: bool) -> None:
    """A pool that holds about two sequences: everything is thrown out and recomputed again and again."""
    groups = len(model.kv_layout.groups)
    engine = make_engine(
        model,
        overlap=overlap,
        num_blocks=14 * groups + 1,
        max_model_len=50,
        full_sequence_must_fit=False,
        token_budget=16,
    )
    assert bits(run(engine, requests())) == expected
    assert engine.core.num_preemptions > 0, "the pool was not small enough to show anything"
    engine.close()


@pytest.mark.parametrize("policy", ["none", "piecewise", "full", "full_decode_only", "full_and_piecewise"])
def test_graph_equals_eager(model: Model, expected: list[object], policy: str) -> None:
    engine = make_engine(model, graphs=policy, token_budget=16)
    assert bits(run(engine, requests())) == expected
    modes = engine.worker._runner.graphs.modes  # type: ignore[attr-defined]
    assert set(modes) == set(POLICIES[policy]), "steps did not run in the modes asked for"
    engine.close()


def test_k26_cached_equals_cold_at_every_hit_length(model: Model) -> None:
    """One long prompt is cached; prompts that share 1 .. n blocks of it, and then differ, hit just that."""
    block_size, base = 4, prompts(1, seed=3, low=40, high=41)[0]
    for shared in range(len(base) + 1):
        prompt = [*base[:shared], *((t + 1) % 61 for t in base[shared : shared + 1]), 7, 8]
        cold_engine = make_engine(model, overlap=False, prefix_caching=False)
        cold = run(cold_engine, [request(prompt)])
        cold_engine.close()
        engine = make_engine(model, block_size=block_size)
        run(engine, [request(base, max_tokens=1)])
        warm = run(engine, [request(prompt)])
        assert bits(warm) == bits(cold), f"shared {shared}"
        assert warm[0].num_cached_tokens == shared // block_size * block_size
        engine.close()


def test_k17_a_history_cut_inside_a_block_with_one_token_changed(model: Model) -> None:
    first = prompts(1, seed=8, low=30, high=31)[0]
    for cut in (13, 14, 15, 16, 17):
        changed = [*first[:cut], (first[cut] + 1) % 61]
        outcomes = []
        for caching in (False, True):
            engine = make_engine(model, prefix_caching=caching)
            run(engine, [request(first)])
            outcomes.append(bits(run(engine, [request(changed)])))
            engine.close()
        assert outcomes[0] == outcomes[1], f"cut at {cut}"


def test_k28_multi_turn_past_a_sliding_window(model: Model) -> None:
    """Each turn is the last one's history and more; windows have long passed the beginning."""
    engine = make_engine(model, num_blocks=400)
    history = prompts(1, seed=9, low=20, high=21)[0]
    for turn in range(5):
        warm = run(engine, [request(history, max_tokens=6)])
        cold_engine = make_engine(model, overlap=False, prefix_caching=False)
        assert bits(warm) == bits(run(cold_engine, [request(history, max_tokens=6)])), f"turn {turn}"
        cold_engine.close()
        assert turn == 0 or warm[0].num_cached_tokens > 0
        history = [*history, *warm[0].token_ids, 11, 12, 13]
    engine.close()


def test_generated_tokens_scored_as_a_prompt_give_the_same_bits(model: Model) -> None:
    prompt = prompts(1, seed=4, low=12, high=13)[0]
    engine = make_engine(model)
    [made] = run(engine, [request(prompt, max_tokens=10, logprobs=0)])
    [scored] = run(engine, [request([*prompt, *made.token_ids], max_tokens=1, prompt_logprobs=0)])
    assert scored.prompt_logprobs[len(prompt) :] == made.logprobs
    engine.close()


def test_choices_with_one_seed_differ_from_each_other_but_not_from_run_to_run(model: Model) -> None:
    rows = [request([1, 2, 3], temperature=1.5, seed=s, max_tokens=12) for s in range(6)]
    engine = make_engine(model)
    first, again = bits(run(engine, rows)), bits(run(engine, rows))
    assert first == again
    assert len({outcome[0] for outcome in first}) > 1  # type: ignore[index]
    engine.close()


def test_the_families_with_blocks_really_compute_on_blocks(tiny: Callable[[str], Model]) -> None:
    for family in ("llama+blocks", "gemma3+blocks"):
        layers = tiny(family).params.layers  # type: ignore[attr-defined]
        assert all(layer.qkv.quantised and layer.down.quantised for layer in layers)
    assert not tiny("llama").params.layers[0].qkv.quantised  # type: ignore[attr-defined]


@pytest.mark.parametrize("limits", [{"token_budget": 5}, {"max_seqs": 2}, {"overlap": False}, {"graphs": "none"}])
@pytest.mark.parametrize("kv_dtype", ["bfloat16", "int16", "int8"])
def test_all_of_it_holds_with_narrow_keys_and_values(model: Model, limits: dict[str, object], kv_dtype: str) -> None:
    alone: list[object] = []
    for item in requests():
        engine = make_engine(model, overlap=False, prefix_caching=False, graphs="none", kv_dtype=kv_dtype)
        alone += bits(run(engine, [item]))
        engine.close()
    engine = make_engine(model, kv_dtype=kv_dtype, **limits)
    assert bits(run(engine, requests())) == alone
    assert bits(run(engine, requests())) == alone, "a warm cache changed something"
    engine.close()

"""V4.1 through the true engine: how steps are cut, batched, cached or thrown away changes no bit.

A small model of random weights: these prompts exceed its window, its chosen entries and its candidate blocks, and cuts
fall inside open pairs of tokens. Pools start full of NaN.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from harness import Outcome, make_engine, request, run
from v41_config import dummy_model
from v41_data import VARIANTS, goldens, model

from headrace import _kernels
from headrace.contract.request import Request
from headrace.models.deepseek_v41.forward import V41Model

BLOCK = 8
LENGTHS = (1, 2, 23, 70, 151)


@pytest.fixture(scope="module")
def small() -> V41Model:
    return dummy_model()


def requests(lengths: tuple[int, ...] = LENGTHS, **sampling: Any) -> list[Request]:
    rng = random.Random(41)
    sampling = {"max_tokens": 6, "prompt_logprobs": 1, **sampling}
    return [request([rng.randrange(300) for _ in range(n)], **sampling) for n in lengths]


def engine_for(of: V41Model, **limits: Any) -> Any:
    settings: dict[str, Any] = {"num_blocks": 600, "block_size": BLOCK, "max_model_len": 512, "graphs": "none"}
    return make_engine(of, **(settings | limits))


def outcomes(of: V41Model, wanted: list[Request], **limits: Any) -> list[Outcome]:
    engine = engine_for(of, **limits)
    try:
        return run(engine, wanted)
    finally:
        engine.close()


def bits(found: list[Outcome]) -> list[object]:
    return [outcome.bits for outcome in found]


@pytest.fixture(scope="module")
def expected(small: V41Model) -> list[object]:
    """Each request alone, its prompt in one step, nothing cached, no overlap."""
    alone = {"overlap": False, "prefix_caching": False}
    return [bits(outcomes(small, [item], **alone))[0] for item in requests()]


def test_a_batch_equals_singles(small: V41Model, expected: list[object]) -> None:
    assert bits(outcomes(small, requests())) == expected


@pytest.mark.parametrize("budget", [7, 16, 33])
def test_chunked_equals_whole(small: V41Model, expected: list[object], budget: int) -> None:
    """Prompts in slices that end on odd and even positions, inside and at the ends of windows and blocks."""
    assert bits(outcomes(small, requests(), token_budget=budget)) == expected


def test_one_token_at_a_time_equals_whole(small: V41Model) -> None:
    """Every prompt token as a decode step of its own."""
    whole = bits(outcomes(small, requests((40,)), overlap=False))
    assert bits(outcomes(small, requests((40,)), token_budget=1)) == whole


def test_decoded_tokens_equal_a_longer_prompt(small: V41Model) -> None:
    """The logprobs of generated tokens are those that a prompt made of them reports."""
    [item] = requests((37,), max_tokens=20, logprobs=0, prompt_logprobs=0)
    [generated] = outcomes(small, [item])
    longer = [*item.prompt_token_ids, *generated.token_ids]
    [scored] = outcomes(small, [request(longer, max_tokens=1, prompt_logprobs=0)])
    assert scored.prompt_logprobs[37:] == generated.logprobs


@pytest.mark.parametrize("block_size", [2, 32, 128])
def test_block_sizes_do_not_matter(small: V41Model, expected: list[object], block_size: int) -> None:
    assert bits(outcomes(small, requests(), block_size=block_size, num_blocks=2500)) == expected


def test_threads_do_not_matter(small: V41Model, expected: list[object]) -> None:
    before = _kernels.num_threads()
    try:
        _kernels.set_num_threads(3 - min(before, 2))
        assert bits(outcomes(small, requests())) == expected
    finally:
        _kernels.set_num_threads(before)


def test_a_cached_prefix_equals_a_computed_one(small: V41Model, expected: list[object]) -> None:
    """The second round finds compressed rows, windows, look-back ids: all that a sequence needs is in blocks."""
    engine = engine_for(small)
    plain = requests(prompt_logprobs=None)
    first = run(engine, plain)
    again = run(engine, requests(prompt_logprobs=None))
    engine.close()
    assert [o.num_cached_tokens > 0 for o in again] == [False, False, True, True, True]
    assert [(o.token_ids, o.logprobs) for o in again] == [(o.token_ids, o.logprobs) for o in first]
    assert [o.token_ids for o in first] == [found[0] for found in expected]  # type: ignore[index]


@pytest.mark.parametrize("shared", [0, 1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 40, 55, 56])
def test_every_hit_length_equals_a_cold_start(small: V41Model, shared: int) -> None:
    """A prompt shares ``shared`` tokens with a cached one: hits end before, at and behind windows and pairs."""
    [base] = [item.prompt_token_ids for item in requests((57,))]
    prompt = [*base[:shared], (base[shared] + 1) % 300, 7, 8]
    [cold] = outcomes(small, [request(prompt, max_tokens=4)], prefix_caching=False)
    engine = engine_for(small)
    run(engine, [request(base, max_tokens=1)])
    [warm] = run(engine, [request(prompt, max_tokens=4)])
    engine.close()
    assert warm.bits == cold.bits
    assert warm.num_cached_tokens == shared // BLOCK * BLOCK


def test_preempted_equals_not_preempted(small: V41Model) -> None:
    """A pool for about one of these sequences: the others are thrown out and recomputed."""
    lengths, wish = (61, 66, 52), {"max_tokens": 12, "prompt_logprobs": None}
    alone = [bits(outcomes(small, [item], overlap=False))[0] for item in requests(lengths, **wish)]
    tight = {"num_blocks": 112, "max_model_len": 100, "full_sequence_must_fit": False, "prefix_caching": False}
    engine = engine_for(small, token_budget=24, **tight)
    assert bits(run(engine, requests(lengths, **wish))) == alone
    assert engine.core.num_preemptions > 0, "the pool was not small enough to show anything"
    engine.close()


def test_bfloat16_is_invariant_too() -> None:
    rounded = dummy_model("bfloat16")
    alone = [bits(outcomes(rounded, [item], overlap=False))[0] for item in requests((23, 70))]
    assert bits(outcomes(rounded, requests((23, 70)), token_budget=13)) == alone


@pytest.mark.parametrize("variant", VARIANTS)
def test_greedy_ids_of_the_engine_are_the_golden_ones(variant: str) -> None:
    g, safe = goldens(variant), {}
    for prompt in ("p0", "p1", "p2"):
        about = g.stated["tensors"][f"{prompt}.greedy_ids"]
        safe[prompt] = about["leading_tokens_with_margin_over_twice_the_disagreement"]
    wanted = [request(g.ids(prompt), max_tokens=16) for prompt in safe]
    for (prompt, count), found in zip(safe.items(), outcomes(model(variant), wanted, token_budget=50, block_size=32)):
        assert list(found.token_ids[:count]) == g[f"{prompt}.greedy_ids"][:count].tolist()


def test_nothing_is_read_that_was_not_written(small: V41Model) -> None:
    """Records poisoned with NaN would show: every logprob is a number."""
    for found in outcomes(small, requests((70,), max_tokens=30), token_budget=11):
        assert all(x is None or x <= 0 for x in (*found.logprobs, *found.prompt_logprobs))

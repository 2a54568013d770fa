"""The deterministic mode on real weights as stored: places in a batch, prefix hits up to thousands of tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headrace import LLM, SamplingParams

pytestmark = pytest.mark.model

BLOCK = 32
WISHES = SamplingParams(max_tokens=5, temperature=1.0, seed=9, logprobs=3)
GREEDY = SamplingParams(max_tokens=3, temperature=0.0)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(deterministic=True, kv_memory=400 << 20) as loaded:
        yield loaded


def ids(length: int, salt: int) -> list[int]:
    return [1000 + (i * i * 31 + i * 17 + salt * 101) % 40_000 for i in range(length)]


def bits(output: Any) -> Any:
    [choice] = output.outputs
    return choice.token_ids, [(token, e.logprob.hex(), e.rank) for row in choice.logprobs for token, e in row.items()]


def cold(llm: LLM, prompt: list[int], name: str) -> Any:
    """Alone, and under a salt of its own: nothing of it is in the cache."""
    [output] = llm.generate([{"prompt_token_ids": prompt, "cache_salt": name}], WISHES)
    assert output.num_cached_tokens == 0
    return bits(output)


def test_alone_and_at_each_index(llm: LLM) -> None:
    expected = cold(llm, ids(70, 0), "index")
    for index in range(5):
        prompts = [ids(20 + 40 * i, 1 + i + index) for i in range(4)]
        prompts.insert(index, ids(70, 0))
        outputs = llm.generate(prompts, [WISHES if i == index else GREEDY for i in range(5)])
        assert bits(outputs[index]) == expected, f"index {index}"


LONG = [pytest.param(shared, marks=pytest.mark.slow) for shared in (2048, 4097)]


@pytest.mark.parametrize("shared", [1, BLOCK, 511, 16 * BLOCK, *LONG])
def test_prefix_hit_and_cold(llm: LLM, shared: int) -> None:
    llm.generate([ids(shared, 7)], GREEDY)
    prompt = [*ids(shared, 7), 77, 78, 79]
    [warm] = llm.generate([prompt], WISHES)
    assert warm.num_cached_tokens == shared // BLOCK * BLOCK
    assert bits(warm) == cold(llm, prompt, f"shared {shared}")


def test_generated_tokens_scored_as_a_prompt(llm: LLM) -> None:
    prompt = ids(90, 5)
    [made] = llm.generate([prompt], SamplingParams(max_tokens=12, temperature=1.0, seed=4, logprobs=0))
    answer = made.outputs[0].token_ids
    scoring = SamplingParams(max_tokens=1, prompt_logprobs=0)
    [scored] = llm.generate([[*prompt, *answer]], scoring)
    rows = scored.prompt_logprobs[len(prompt) :]
    assert [row[t].logprob.hex() for row, t in zip(rows, answer)] == [
        row[t].logprob.hex() for row, t in zip(made.outputs[0].logprobs, answer)
    ]

"""All that a V4.1 sequence remembers, copied out of one engine and into another at every kind of place: before, at and
behind the ends of pairs, blocks, windows and grains. It goes on with the same bits."""

from __future__ import annotations

import random
from typing import Any

import pytest

from headrace import LLM, SamplingParams

LENGTHS = (1, 2, 3, 4, 5, 15, 16, 17, 127, 128, 129, 130, 131, 255, 256, 257, 300)
GREEDY = SamplingParams(temperature=0, max_tokens=7, ignore_eos=True, logprobs=0)


def answers(**settings: Any) -> list[Any]:
    rng = random.Random(6)
    prompts = [{"prompt_token_ids": [rng.randrange(3, 900) for _ in range(n)]} for n in LENGTHS]
    with LLM("v41-mini", kv_memory=96 << 20, num_threads=2, max_model_len=512, **settings) as llm:
        found = []
        for output in llm.generate(prompts, GREEDY):
            [choice] = output.outputs
            found.append((list(choice.token_ids), [[(k, v.logprob) for k, v in e.items()] for e in choice.logprobs]))
        return found


@pytest.mark.parametrize("block_size", [16, 128])
def test_a_sequence_goes_on_elsewhere_with_the_same_bits(block_size: int) -> None:
    alone = answers(block_size=block_size)
    assert answers(block_size=block_size, discipline="split", token_budget=100) == alone

"""The default model, end to end: real weights, text in, text out."""

from __future__ import annotations

import asyncio
import math

import pytest

from headrace import LLM, SamplingParams
from headrace.contract.errors import InvalidRequest

pytestmark = pytest.mark.model

FRANCE = "The capital of France is"
GREEDY = SamplingParams(temperature=0, max_tokens=12, logprobs=2, ignore_eos=True)
PROMPTS = [
    FRANCE,
    "Once upon a time",
    "def fibonacci(n):",
    "Water boils at",
    "1, 2, 3, 4, 5, 6,",
    "The quick brown fox jumps over the lazy dog. " * 12,
    "Die Hauptstadt von Deutschland ist",
    "In 1969,",
]


def bits(llm: LLM, prompts: list[str], params: SamplingParams) -> list[object]:
    return [
        (o.outputs[0].token_ids, [{k: v.logprob for k, v in row.items()} for row in o.outputs[0].logprobs or []])
        for o in llm.generate(prompts, params)
    ]


def test_the_capital_of_france(llm: LLM) -> None:
    [output] = llm.generate(FRANCE, GREEDY)
    assert output.outputs[0].token_ids[:5] == [7042, 30, 198, 198, 504]
    assert output.outputs[0].text.startswith(" Paris.")
    assert output.prompt == FRANCE


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(temperature=1, seed=7, max_tokens=12, logprobs=2)])
def test_a_batch_of_eight_equals_eight_singles_to_the_bit(llm: LLM, params: SamplingParams) -> None:
    assert bits(llm, PROMPTS, params) == [bits(llm, [p], params)[0] for p in PROMPTS]


def test_cached_equals_cold_to_the_bit(llm: LLM) -> None:
    long = "The history of the world is long, and it has many chapters. " * 20
    llm.engine.core.reset_prefix_cache()
    cold = bits(llm, [long], GREEDY)
    [again] = llm.generate(long, GREEDY)
    assert again.num_cached_tokens > 0
    assert bits(llm, [long], GREEDY) == cold


def test_logprobs_are_of_the_raw_distribution(llm: LLM) -> None:
    """Whatever shapes the draw, the reported numbers are those of the plain model."""
    plain = llm.generate(FRANCE, SamplingParams(temperature=0, max_tokens=1, logprobs=5))[0].outputs[0]
    shaped = llm.generate(
        FRANCE,
        SamplingParams(temperature=0.3, top_k=3, max_tokens=1, logprobs=5, logit_bias={7042: 20.0}, seed=3),
    )[0].outputs[0]
    assert shaped.token_ids == [7042]
    assert plain.logprobs is not None
    assert shaped.logprobs is not None
    assert plain.logprobs[0][7042].logprob == shaped.logprobs[0][7042].logprob
    assert sum(math.exp(p.logprob) for p in plain.logprobs[0].values()) <= 1.0


def test_prompt_logprobs_cover_every_token_but_the_first(llm: LLM) -> None:
    [output] = llm.generate(FRANCE, SamplingParams(max_tokens=1, prompt_logprobs=0, temperature=0))
    assert output.prompt_logprobs is not None
    assert output.prompt_logprobs[0] is None
    assert [set(row or {}) for row in output.prompt_logprobs[1:]] == [{i} for i in output.prompt_token_ids[1:]]


def test_stop_strings_cut_text_ids_and_logprobs(llm: LLM) -> None:
    free = llm.generate(FRANCE, GREEDY)[0].outputs[0]
    stopped = llm.generate(FRANCE, SamplingParams(temperature=0, max_tokens=12, logprobs=0, stop=["answer"]))[
        0
    ].outputs[0]
    assert "answer" in free.text
    assert stopped.text == free.text[: free.text.index("answer")]
    assert (stopped.finish_reason, stopped.stop_reason) == ("stop", "answer")
    assert stopped.token_ids == free.token_ids[: len(stopped.token_ids)]
    assert len(stopped.logprobs or []) == len(stopped.token_ids)


def test_choices_are_seeded_each_by_itself(llm: LLM) -> None:
    params = SamplingParams(n=3, temperature=1, seed=5, max_tokens=8)
    first, again = (llm.generate(FRANCE, params)[0].outputs for _ in range(2))
    assert [c.index for c in first] == [0, 1, 2]
    assert [c.token_ids for c in first] == [c.token_ids for c in again]
    assert len({tuple(c.token_ids) for c in first}) == 3
    alone = llm.generate(FRANCE, SamplingParams(temperature=1, seed=5, max_tokens=8))[0].outputs[0]
    assert alone.token_ids == first[0].token_ids


def test_chat_answers_through_the_template(llm: LLM) -> None:
    [output] = llm.chat([{"role": "user", "content": "What is the capital of France?"}], GREEDY)
    assert "Paris" in output.outputs[0].text
    with pytest.raises(InvalidRequest, match="messages"):
        llm.chat([])


@pytest.mark.parametrize(
    ("prompt", "params", "field"),
    [
        ("", {}, "prompt"),
        ([], {}, "prompt"),
        ({"prompt_token_ids": [1, 49152]}, {}, "prompt_token_ids"),
        ({"prompt_token_ids": [-1]}, {}, "prompt_token_ids"),
        ({"prompt_token_ids": [1.5]}, {}, "prompt_token_ids"),
        ({"prompt": "x", "colour": 1}, {}, "colour"),
        ({"prompt": 5}, {}, "prompt"),
        ({"prompt_token_ids": [5] * 9000}, {}, "prompt"),
        ("x", {"temperature": -1.0}, "temperature"),
        ("x", {"temperature": float("nan")}, "temperature"),
        ("x", {"top_p": 1.5}, "top_p"),
        ("x", {"top_k": -5}, "top_k"),
        ("x", {"max_tokens": 0}, "max_tokens"),
        ("x", {"max_tokens": 2**63}, "max_tokens"),
        ("x", {"max_tokens": 1.5}, "max_tokens"),
        ("x", {"n": 0}, "n"),
        ("x", {"logprobs": -1}, "logprobs"),
        ("x", {"logit_bias": {999_999_999: 5.0}}, "logit_bias"),
        ("x", {"logit_bias": {1: float("nan")}}, "logit_bias"),
        ("x", {"allowed_token_ids": []}, "allowed_token_ids"),
        ("x", {"stop": [""]}, "stop"),
        ("x", {"min_tokens": 9, "max_tokens": 3}, "min_tokens"),
        ("x", {"repetition_penalty": 0.0}, "repetition_penalty"),
        ("x", {"seed": 2**64}, "seed"),
    ],
)
def test_bad_input_names_the_field_and_leaves_a_working_engine(
    llm: LLM, prompt: object, params: dict[str, object], field: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        llm.generate([FRANCE, prompt] if prompt != [] else [FRANCE, []], SamplingParams(**params))  # type: ignore[arg-type]
    assert caught.value.field == field
    assert llm.generate(FRANCE, GREEDY)[0].outputs[0].token_ids[0] == 7042
    assert llm.engine.core.num_used_blocks == 0


def test_async_streams_in_a_process_of_its_own() -> None:
    """Submit, stream, abort; the same tokens as in this process."""
    from headrace import AsyncLLM

    async def scenario() -> None:
        client = AsyncLLM(own_process=True, dtype="float32", kv_memory=128 << 20)
        try:
            outputs = [o async for o in client.generate(FRANCE, GREEDY)]
            assert outputs[-1].finished
            assert outputs[-1].outputs[0].token_ids[:5] == [7042, 30, 198, 198, 504]
            assert len(outputs) > 3
            async for _ in client.generate("Once upon a time", SamplingParams(max_tokens=4000, ignore_eos=True)):
                break
            again = [o async for o in client.generate(FRANCE, GREEDY)]
            assert again[-1].outputs[0].token_ids == outputs[-1].outputs[0].token_ids
        finally:
            client.close()

    asyncio.run(scenario())

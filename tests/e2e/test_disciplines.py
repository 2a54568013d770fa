"""The voted discipline on the default model with real weights: the same bits as the mixed one, overlapped or not."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from headrace import LLM, SamplingParams
from headrace.api.async_llm import AsyncLLM
from headrace.contract.errors import ConfigError, EngineDead
from headrace.contract.plan import StepKind
from headrace.contract.request import StructuredOutputs

pytestmark = pytest.mark.model
PROMPTS = ["The capital of France is", "Water boils at", "Once upon a time there was a " * 30, "def fib(n):"]
PARAMS = [
    SamplingParams(temperature=t, seed=7, max_tokens=24, logprobs=2, n=n) for t, n in ((0, 1), (1, 1), (0, 1), (0.8, 3))
]
SETTINGS: dict[str, Any] = {"kv_memory": 64 << 20, "token_budget": 96, "strict": True, "num_threads": 2}


def results(**settings: Any) -> tuple[list[Any], set[int]]:
    """Ids and logprobs of a batch, greedy and seeded, and the kinds of steps that ran."""
    kinds: set[int] = set()
    with LLM(**SETTINGS, **settings) as llm:
        plan = llm.engine._cadence.plan

        def seen(core: Any) -> Any:
            planned = plan(core)
            kinds.add(int(planned.kind))
            return planned

        llm.engine._cadence.plan = seen
        outputs = llm.generate(PROMPTS, PARAMS)
        assert llm.engine.core.num_used_blocks == 0
    return [[(o.token_ids, o.logprobs) for o in output.outputs] for output in outputs], kinds


@pytest.fixture(scope="module")
def mixed() -> list[Any]:
    found, kinds = results()
    assert kinds == {StepKind.MIXED}
    return found


@pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "sync"])
def test_voted_equals_mixed_to_the_bit(mixed: list[Any], overlap: bool) -> None:
    found, kinds = results(discipline="voted", overlap=overlap, all_interval=5)
    assert kinds == {StepKind.PREFILL, StepKind.DECODE}
    assert found == mixed


def test_split_equals_mixed_to_the_bit(mixed: list[Any]) -> None:
    with LLM(**SETTINGS | {"kv_memory": 128 << 20}, discipline="split") as llm:
        found = [[(o.token_ids, o.logprobs) for o in output.outputs] for output in llm.generate(PROMPTS, PARAMS)]
        prompt, completion = llm.engine.client.rank_stats
        assert prompt.decode_tokens < completion.decode_tokens == completion.scheduled_tokens
    assert found == mixed


def test_split_into_two_processes_equals_mixed_to_the_bit(mixed: list[Any]) -> None:
    """Prompts of several steps, so that KV goes ahead; a grammar, which the second process compiles again."""
    constrained = SamplingParams(
        temperature=0, max_tokens=16, structured_outputs=StructuredOutputs(choice=["Paris is", "Rome was"])
    )

    async def answer(llm: AsyncLLM, prompt: str, params: SamplingParams) -> Any:
        async for output in llm.generate(prompt, params):
            last = output
        return last.outputs

    async def all_answers() -> list[Any]:
        settings = SETTINGS | {"kv_memory": 128 << 20}
        async with AsyncLLM(own_process=True, discipline="split", **settings) as llm:
            asked = [*zip(PROMPTS, PARAMS), (PROMPTS[0], constrained)]
            found = await asyncio.gather(*(answer(llm, prompt, params) for prompt, params in asked))
            assert all(stats.steps for stats in llm.client.rank_stats)
            return found

    *found, [chosen] = asyncio.run(all_answers())
    assert [[(o.token_ids, o.logprobs) for o in outputs] for outputs in found] == mixed
    assert chosen.text in ("Paris is", "Rome was")


@pytest.mark.parametrize("discipline", ["voted", "split"])
def test_a_store_serves_every_discipline_with_the_same_bits(discipline: str, tmp_path: Path) -> None:
    prompt = {"prompt_token_ids": [1000 + 37 * i % 9000 for i in range(300)]}
    answers, hits = [], []
    for settings in ({"kv_store": "off"}, *[{"kv_store": str(tmp_path), "discipline": discipline}] * 2):
        with LLM(**SETTINGS | {"kv_memory": 128 << 20}, **settings) as llm:
            [output] = llm.generate([prompt], SamplingParams(temperature=0, max_tokens=8, logprobs=2))
            answers.append((output.outputs[0].token_ids, output.outputs[0].logprobs))
            hits.append(output.num_cached_tokens)
    assert answers[0] == answers[1] == answers[2]
    assert hits == [0, 0, 256]


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"discipline": "both"}, "discipline"),
        ({"discipline": "voted", "priority": True}, "priority"),
        ({"discipline": "voted", "all_interval": 0}, "all_interval"),
        ({"discipline": "voted", "any_interval": 0}, "any_interval"),
        ({"kv_limit": 0.0}, "kv_limit"),
        ({"data_parallel_size": 0}, "data_parallel_size"),
        ({"discipline": "split", "data_parallel_size": 2}, "data_parallel_size"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_loaded(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=f"^{field}: "):
        LLM("/nowhere", **settings)


@pytest.mark.parametrize("discipline", ["mixed", "voted"])
def test_a_group_of_two_processes_gives_the_same_bits(mixed: list[Any], discipline: str) -> None:
    told: list[tuple[str, int, int]] = []
    settings = SETTINGS | {"kv_memory": 128 << 20, "progress": lambda *news: told.append(news)}
    with LLM(**settings, discipline=discipline, data_parallel_size=2, all_interval=5) as llm:
        found = [[(o.token_ids, o.logprobs) for o in output.outputs] for output in llm.generate(PROMPTS, PARAMS)]
    assert found == mixed
    assert [news for news in told if news[0] == "start"] == [("start", 0, 2), ("start", 2, 2)]


def test_killing_a_rank_of_a_real_group_ends_it_with_its_reason() -> None:
    settings = SETTINGS | {"kv_memory": 128 << 20}
    endless = SamplingParams(temperature=0, max_tokens=1500, ignore_eos=True)
    with LLM(**settings, discipline="voted", data_parallel_size=2) as llm:
        [pid, _] = llm.engine.client.pids
        killed, ends = False, []
        for news in llm.feed([llm.prepare(prompt, endless) for prompt in PROMPTS[:2]]):
            if news and not killed:
                os.kill(pid, signal.SIGKILL)
                killed = True
            ends += [output for output in news if output.finished]
        assert [output.outputs[0].finish_reason for output in ends] == ["error", "error"]
        with pytest.raises(EngineDead, match=r"^rank [01] of 2: "):
            llm.generate("once more")

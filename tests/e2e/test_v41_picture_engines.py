"""Pictures where more than one process is at work: a prompt and a decode engine, an encoder of its own that is
killed in the midst of a request. The same bits as from one engine everywhere."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_models

from headrace import LLM, AsyncLLM, SamplingParams
from headrace.api import role_service
from headrace.cli.serve_roles import RoleFlags, serve_role
from headrace.config import resolve
from headrace.contract.errors import ConfigError, InvalidRequest, StartRefused

SETTINGS: dict[str, Any] = {"kv_memory": 64 << 20, "num_threads": 2, "max_model_len": 256}
MODEL = "v41-mini"
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=0)
TEXT = "The Queen said to Alice"


def prompt(*seeds: int) -> dict[str, Any]:
    images = [np.random.default_rng(seed).integers(0, 256, (70, 112, 3), dtype=np.uint8) for seed in seeds]
    return {"prompt": "<｜deepseek_image｜>\n" * len(seeds) + "What did Alice see?", "images": images}


PROMPTS: list[Any] = [prompt(1), TEXT, prompt(2, 1)]


def bits(output: Any) -> Any:
    [choice] = output.outputs
    return list(choice.token_ids), [[(k, v.logprob) for k, v in entry.items()] for entry in choice.logprobs]


def answers(**settings: Any) -> list[Any]:
    with LLM(MODEL, **SETTINGS, **settings) as llm:
        return [bits(output) for output in llm.generate(PROMPTS, GREEDY)]


@pytest.fixture(scope="module")
def alone() -> list[Any]:
    return answers()


async def answer(llm: AsyncLLM, asked: Any) -> Any:
    async for output in llm.generate(asked, GREEDY):
        last = output
    return bits(last)


def test_a_prompt_and_a_decode_engine_see_them_too(alone: list[Any]) -> None:
    assert answers(discipline="split") == alone


@pytest.mark.parametrize("discipline", ["voted", "split"])
def test_a_picture_is_never_cut_there_and_one_too_large_is_refused(alone: list[Any], discipline: str) -> None:
    """Of 10 rows each, in steps of 12: a second one waits for the next step."""
    with LLM(MODEL, **SETTINGS, discipline=discipline, token_budget=12) as llm:
        assert [bits(output) for output in llm.generate(PROMPTS, GREEDY)] == alone
        large = np.zeros((140, 140, 3), dtype=np.uint8)
        with pytest.raises(InvalidRequest, match=r"^images\[1\]: takes 22 rows of the prompt; .* a step has 12"):
            llm.generate({**prompt(1, 2), "images": [prompt(1)["images"][0], large]}, GREEDY)


def test_so_do_two_processes_with_an_encoder_before_them(alone: list[Any]) -> None:
    async def all_answers() -> list[Any]:
        wanted = {"discipline": "split", "encoder_process": True}
        async with AsyncLLM(MODEL, own_process=True, **SETTINGS, **wanted) as llm:
            return await asyncio.gather(*(answer(llm, asked) for asked in PROMPTS))

    assert asyncio.run(all_answers()) == alone


def test_an_encoder_killed_in_the_midst_of_a_request_comes_back(alone: list[Any]) -> None:
    """It is stopped before the picture comes, so it has encoded nothing when it is killed; meanwhile text goes on."""

    async def run() -> tuple[list[Any], list[Any]]:
        async with AsyncLLM(MODEL, encoder_process=True, **SETTINGS) as llm:
            first = llm.client.encoder_pid
            os.kill(first, signal.SIGSTOP)
            pictured = [asyncio.create_task(answer(llm, PROMPTS[i])) for i in (0, 2)]
            beside = await answer(llm, TEXT)
            assert not any(task.done() for task in pictured)
            os.kill(first, signal.SIGKILL)
            seen = await asyncio.gather(*pictured)
            again = await answer(llm, PROMPTS[0])  # from the rows that were kept
            assert llm.client.encoder_pid != first
            return [seen[0], beside, seen[1]], again

    found, again = asyncio.run(run())
    assert found == alone
    assert again == alone[0]


def test_the_synchronous_front_and_exact_arithmetic(alone: list[Any]) -> None:
    assert answers(encoder_process=True) == alone
    exact = answers(dtype="float32")
    assert exact != alone
    assert answers(dtype="float32", encoder_process=True) == exact


def test_a_model_without_eyes_needs_no_encoder(tmp_path: Path) -> None:
    config = dict(tiny_models.CONFIGS["llama"])
    path = tiny_models.write_directory(tmp_path, config, tiny_models.random_tensors(config))
    with pytest.raises(StartRefused, match=r"the encoder did not start: encoder_process: .* reads text only"):
        LLM(str(path), kv_memory=64 << 20, encoder_process=True)


@pytest.mark.parametrize("field", ["encoder_threads", "encoder_timeout_s"])
def test_bounds(field: str) -> None:
    with pytest.raises(ConfigError, match=f"^{field}: "):
        resolve({field: 0})


def test_a_role_leaves_the_encoder_to_its_front() -> None:
    flags: Any = RoleFlags("prefill", "tcp://127.0.0.1:1", "tcp://127.0.0.1:2")
    report: Any = None
    with pytest.raises(ConfigError, match=r"^encoder_process: is the front's"):
        serve_role(resolve({"model": MODEL, "encoder_process": True}), flags, report)


def test_a_front_computes_pictures_as_its_engines_would() -> None:
    config = resolve({"model": MODEL, "dtype": "float32", "encoder_process": True})
    with pytest.raises(ConfigError, match=r"^dtype: the engines have auto, the encoder here float32"):
        role_service._check_encoder(config, {"dtype": "auto"})

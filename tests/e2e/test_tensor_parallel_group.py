"""An engine whose model is cut over processes: the tokens and logprobs of one process, ends of ranks, refusals."""

from __future__ import annotations

from typing import Any

import pytest
import tiny_models

from headrace import LLM, SamplingParams
from headrace.contract.errors import ConfigError, GroupBroken, WorkerError

SETTINGS: dict[str, Any] = {"dtype": "float32", "kv_memory": 8 << 20, "num_threads": 2, "token_budget": 16}
PROMPTS = [{"prompt_token_ids": [(7 * i * i + n) % 60 for i in range(n)]} for n in (5, 33, 12)]
PARAMS = [SamplingParams(temperature=t, seed=4, max_tokens=12, logprobs=2) for t in (0, 1, 1)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    config = dict(tiny_models.CONFIGS["qwen3"])
    folder = tmp_path_factory.mktemp("model")
    return str(tiny_models.write_directory(folder, config, tiny_models.random_tensors(config)))


def answers(llm: LLM) -> list[Any]:
    return [(o.outputs[0].token_ids, o.outputs[0].logprobs) for o in llm.generate(PROMPTS, PARAMS)]


def test_two_processes_equal_one_to_the_bit(model: str) -> None:
    with LLM(model, **SETTINGS) as alone:
        expected = answers(alone)
    with LLM(model, **SETTINGS, tensor_parallel_size=2) as team:
        assert answers(team) == expected
        assert answers(team) == expected  # from cached prefixes
        [process] = team.engine.worker._runner._on_close.__self__._processes
        assert process.poll() is None
    assert process.poll() == 0


def test_a_follower_that_dies_ends_the_engine_with_a_reason(model: str) -> None:
    with LLM(model, **SETTINGS, tensor_parallel_size=2) as team:
        ranks = team.engine.worker._runner._on_close.__self__
        [process] = ranks._processes
        process.kill()
        process.wait(60)
        assert ranks.gone() == f"rank 1 of 2 (process {process.pid}) ended: exit code -9"
        with pytest.raises((GroupBroken, WorkerError), match=r"is gone|rank 1 of 2 \(process"):
            answers(team)


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"tensor_parallel_size": 0}, "tensor_parallel_size"),
        ({"data_parallel_size": 2}, "tensor_parallel_size"),
        ({"discipline": "split"}, "tensor_parallel_size"),
        ({"speculation": "ngram"}, "tensor_parallel_size"),
        ({"kv_store": "/somewhere"}, "tensor_parallel_size"),
        ({"num_threads": 1}, "tensor_parallel_size"),
        ({"tensor_parallel_size": 3, "num_threads": 3}, "tensor_parallel_size"),
        ({"model": "v41-mini"}, "tensor_parallel_size"),
    ],
)
def test_what_cannot_be_cut_is_refused_by_name(model: str, settings: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=f"^{field}: "):
        LLM(**{"model": model} | SETTINGS | {"tensor_parallel_size": 2} | settings)

"""The deterministic mode at its doors: what it refuses and mends, unseeded draws, and two processes' equal bytes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from cli_models import records, start, write_model

from headrace import LLM, SamplingParams
from headrace.api.async_llm import AsyncLLM
from headrace.api.determinism import RULES, settle
from headrace.config import resolve
from headrace.contract.errors import ConfigError
from headrace.contract.request import choice_seed, prompt_seed


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_model(tmp_path_factory.mktemp("text"))


def test_off_nothing_changes() -> None:
    config = resolve({"backend": "reference"})
    assert settle(config).config is config


@pytest.mark.parametrize("own_process", [False, True])
def test_a_backend_that_depends_on_the_batch_is_refused_and_says_why(model: str, own_process: bool) -> None:
    with pytest.raises(ConfigError, match=r"backend: deterministic refuses it: only the cpu backend"):
        AsyncLLM(model, deterministic=True, backend="reference", own_process=own_process)


def test_a_fallback_is_ruled_out_and_told() -> None:
    settled = settle(resolve({"deterministic": True}))
    assert settled.config.model.strict
    [words] = settled.words
    assert words.startswith("deterministic sets strict: an op that fell back")
    assert settle(settled.config).words == ()


def test_drafts_are_accepted_by_the_rule_that_repeats() -> None:
    config = settle(resolve({"deterministic": True, "strict": True, "speculation": "self"})).config
    assert config.speculation.acceptance == "exact"


def test_every_rule_has_a_reason_and_mends_what_it_says() -> None:
    for rule in RULES:
        assert len(rule.reason) > 20
        candidates = map(resolve, ({"backend": "reference"}, {}, {"speculation": "self"}, {"prefill_keep": 200}))
        broken = next(config for config in candidates if rule.breaks(config))
        assert rule.mend is None or not rule.breaks(rule.mend(broken))


def test_a_context_that_would_follow_free_memory_is_refused(model: str) -> None:
    small = {"kv_memory": 64 << 10, "max_seqs": 4}
    with LLM(model, **small) as llm:
        shrunk = llm.max_model_len
    assert shrunk < 512
    with pytest.raises(ConfigError, match=f"max_model_len: .*depends on free memory.*at most {shrunk}"):
        LLM(model, deterministic=True, **small)
    with LLM(model, deterministic=True, max_model_len=shrunk, **small) as llm:
        assert llm.max_model_len == shrunk


def drawn(llm: LLM, prompts: list[str], **wishes: Any) -> list[list[Any]]:
    params = SamplingParams(max_tokens=12, temperature=1.0, logprobs=2, **wishes)
    return [[(c.token_ids, c.logprobs) for c in output.outputs] for output in llm.generate(prompts, params)]


def test_unseeded_draws_depend_on_the_prompt_alone(model: str) -> None:
    with LLM(model, deterministic=True, kv_memory=4 << 20) as llm:
        [first] = drawn(llm, ["abc"], n=3)
        others = drawn(llm, ["xyz", "abc", "abc", "ab"], n=3)
    with LLM(model, deterministic=True, kv_memory=4 << 20, overlap=False, prefix_caching=False) as llm:
        assert drawn(llm, ["abc"], n=3) == [first]
    assert others[1] == others[2] == first
    assert others[0] != first
    assert len({tuple(ids) for ids, _ in first}) == 3, "choices of one prompt differ"


@pytest.mark.parametrize("own_process", [False, True])
def test_the_async_front_draws_the_same(model: str, own_process: bool) -> None:
    async def collect() -> list[int]:
        async with AsyncLLM(model, deterministic=True, kv_memory=4 << 20, own_process=own_process) as llm:
            streams = [llm.generate(p, SamplingParams(max_tokens=12, temperature=1.0)) for p in ("zzz", "abc")]
            finals = [[output async for output in stream][-1] for stream in streams]
            ids: list[int] = finals[1].outputs[0].token_ids
            return ids

    with LLM(model, deterministic=True, kv_memory=4 << 20) as llm:
        expected = drawn(llm, ["abc"])[0][0][0]
    assert asyncio.run(collect()) == expected


def test_without_the_mode_unseeded_draws_differ(model: str) -> None:
    with LLM(model, kv_memory=4 << 20) as llm:
        assert len({tuple(draw[0][0]) for draw in drawn(llm, ["abc"] * 6)}) > 1


def test_the_derived_seed_is_fixed_for_good() -> None:
    """Changing it changes every unseeded answer of every deployment: a new version may, a refactoring may not."""
    assert prompt_seed([1, 2, 3]) == 8225719225255380334
    assert prompt_seed([1, 23]) != prompt_seed([12, 3])
    assert choice_seed(prompt_seed([1, 2, 3]), 0) == prompt_seed([1, 2, 3])


def generated(model: str, source: Path, out: Path, threads: int) -> dict[str, bytes]:
    """Each record's bytes, but for where it stood and how much of its prompt was found in the cache."""
    flags = ["--threads", str(threads), "--kv-memory", "4MiB", "--temperature", "1", "--max-tokens", "9"]
    process = start("generate", "-i", str(source), "-o", str(out), "-m", model, "--deterministic", *flags, "--json")
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err.decode()
    lines = {record["id"]: record for record in records(out)}
    for record in lines.values():
        record.pop("line", None)
        record["usage"].pop("cached_tokens")
    return {name: json.dumps(record, sort_keys=True).encode() for name, record in lines.items()}


def test_two_processes_give_the_same_bytes(model: str, tmp_path: Path) -> None:
    """Other thread counts, and the lines in another order, so that everyone has other neighbours."""
    wishes = [{"id": f"p{i}", "prompt": f"Line {i % 7}" * (i % 5 + 1), "logprobs": 2} for i in range(30)]
    results = []
    for run, threads in enumerate((1, 2)):
        source = tmp_path / f"in{run}.jsonl"
        source.write_text("".join(json.dumps(w) + "\n" for w in (wishes if run else wishes[::-1])))
        results.append(generated(model, source, tmp_path / f"out{run}.jsonl", threads))
    assert results[0] == results[1]
    assert len(results[0]) == 30

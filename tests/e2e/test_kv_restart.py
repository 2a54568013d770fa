"""An engine killed with -9 and started again serves a long prefix from its store, with the same bits."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace import LLM, SamplingParams, env
from headrace.contract.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
ANSWERER = ROOT / "tests" / "support" / "kv_restart.py"
IDS = random.Random(5).choices(range(1000, 40_000), k=700)


def start(store: str, *arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": ":".join(p for p in sys.path if p)}
    command = [sys.executable, str(ANSWERER), store, *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdin is not None
    process.stdin.write(json.dumps(IDS))
    process.stdin.close()
    return process


def answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    return dict(json.loads(process.stdout.readline()))


@pytest.mark.model
@pytest.mark.parametrize("dtype", ["float32", pytest.param("auto", marks=pytest.mark.slow)])
def test_killed_and_started_again(tmp_path: Path, dtype: str) -> None:
    with start("off", "exit", dtype) as plain:
        truth = answer(plain)
    store = str(tmp_path / "kv")
    with start(store, "wait", dtype) as first:
        computed = answer(first)
        first.kill()  # in the midst of its life: nothing was closed, nothing sealed
    with start(store, "exit", dtype) as second:
        loaded = answer(second)
    assert truth["cached"] == computed["cached"] == 0
    assert 128 <= loaded["cached"] <= 640  # what the saver had published before the kill
    for told in (computed, loaded):
        assert (told["ids"], told["logprobs"]) == (truth["ids"], truth["logprobs"])
    with start(store, "exit", dtype) as third:
        assert answer(third)["cached"] == 640


@pytest.mark.model
def test_the_library_s_setting_and_what_it_refuses(tmp_path: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=2)
    for expected, fetch in ((0, "thread"), (256, "process"), (256, "thread")):
        with LLM(kv_store=str(tmp_path), kv_fetch=fetch, kv_memory=64 << 20, max_model_len=512) as llm:
            [output] = llm.generate([{"prompt_token_ids": IDS[:300]}], params)
            assert output.num_cached_tokens == expected
    for settings in ({"block_size": 48}, {"prefix_caching": False}):
        with pytest.raises(ConfigError, match="kv_store"):
            LLM(kv_store=str(tmp_path), kv_memory=64 << 20, **settings)
    with pytest.raises(ConfigError, match="kv_store_size"):
        LLM(kv_store_size=5)
    with pytest.raises(ConfigError, match="kv_fetch: must be thread or process"):
        LLM(kv_fetch="both")


@pytest.mark.model
def test_a_store_that_cannot_be_used_is_no_obstacle_unless_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for part in env.cache_dir().iterdir():
        if part.name != "kv":
            (tmp_path / part.name).symlink_to(part)
    (tmp_path / "kv").write_text("not a folder")
    with pytest.raises(ConfigError, match="is a file, not a folder"):
        LLM(kv_store=str(tmp_path / "kv"))
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    monkeypatch.delenv("HEADRACE_KV_STORE")
    with LLM(kv_memory=64 << 20, max_model_len=512) as llm:
        [output] = llm.generate([{"prompt_token_ids": IDS[:300]}], SamplingParams(temperature=0, max_tokens=2))
    assert len(output.outputs[0].token_ids) == 2

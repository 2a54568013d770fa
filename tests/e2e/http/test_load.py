"""``bench serve`` against a real server: every token is counted, failures are failures."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from served import Running, Script, running, scripted_llm
from typer.testing import CliRunner

from headrace.cli.guard import SOME_FAILED
from headrace.cli.main import build_app
from headrace.contract.errors import ConfigError
from headrace.lab.bench.load.arrivals import Synthetic
from headrace.lab.bench.load.client import ServerError, Target, ask
from headrace.lab.bench.load.figures import Slo
from headrace.lab.bench.load.run import bench_serve


def rows(server: Running, load: Synthetic, concurrency: int | None, **slo: Any) -> dict[str, Any]:
    report = bench_serve(Target(server.url), load, concurrency, Slo(**slo))
    told = {row.what: row.value.median for row in report.rows if row.value is not None}
    return told | {"notes": [row.note for row in report.rows if row.note], "curves": report.curves}


@pytest.mark.parametrize(("rate", "concurrency"), [(None, 3), (200.0, None), (200.0, 2)])
def test_all_of_it_is_answered(scripted: Running, rate: float | None, concurrency: int | None) -> None:
    before = len(scripted.requests)
    told = rows(scripted, Synthetic(12, 5, 9, rate, max_id=200), concurrency)
    assert told["failed requests"] == 0
    assert told["output tokens"] / told["requests"] == pytest.approx(9)
    assert told["goodput"] == told["requests"]
    assert told["TTFT p50"] <= told["E2E p50"]
    assert len(scripted.requests) - before == 13  # one to warm up
    scripted.settled()
    assert len(told["curves"]) == 2


def test_texts_and_further_fields_are_sent(scripted: Running) -> None:
    target = Target(scripted.url, extra={"max_tokens": 3})
    outcome = asyncio.run(ask(target, "abc", 9))
    assert (outcome.error, outcome.num_prompt, outcome.tokens) == (None, 3, 3)


def test_an_slo_that_nothing_keeps(scripted: Running) -> None:
    assert rows(scripted, Synthetic(3, 5, 4, max_id=200), 1, ttft_s=0.0)["goodput"] == 0


def test_failures_are_counted_with_their_reason(script: Script) -> None:
    with running(lambda: scripted_llm(script, fail_steps={9})) as server:
        told = rows(server, Synthetic(4, 5, 6, max_id=200), 1)
    assert told["failed requests"] == 1
    assert "scripted failure" in told["notes"][0]


def test_a_run_again_is_told_that_the_server_knew_its_prompts(scripted: Running) -> None:
    load = Synthetic(3, 60, 4, max_id=200, seed=7)
    assert rows(scripted, load, 1)["notes"] == []
    [note] = rows(scripted, load, 1)["notes"]
    assert "another --seed" in note


@pytest.mark.parametrize(("fail_steps", "code"), [(set(), 0), ({9}, SOME_FAILED), (set(range(4, 4000)), 1)])
def test_the_exit_code_tells_of_failures(script: Script, fail_steps: set[int], code: int) -> None:
    words = ["bench", "serve", "--requests", "4", "--length", "5", "--tokens", "6", "--concurrency", "1", "--json"]
    with running(lambda: scripted_llm(script, fail_steps=fail_steps)) as server:
        result = CliRunner().invoke(build_app(), [*words, "--max-id", "200", "--url", server.url])
    assert result.exit_code == code, result.output


def test_what_cannot_be_measured_is_refused(scripted: Running) -> None:
    with pytest.raises(ServerError, match="first request"):
        rows(scripted, Synthetic(3, 5, 4, max_id=40_000), 1)  # ids the model does not have
    with pytest.raises(ServerError, match=r"127\.0\.0\.1:1"):
        bench_serve(Target("http://127.0.0.1:1"), Synthetic(1, 1, 1), 1, Slo())
    with pytest.raises(ConfigError, match="concurrency"):
        bench_serve(Target(scripted.url), Synthetic(1, 1, 1), None, Slo())
    with pytest.raises(ConfigError, match="url"):
        bench_serve(Target("ftp://x"), Synthetic(1, 1, 1), 1, Slo())

"""The trace driver: reading, scaling, open-loop driving, and a small real comparison through the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli_models import SMALL, write_model
from typer.testing import CliRunner

from headrace._core import Scheduler
from headrace.cli.main import build_app
from headrace.contract.errors import ConfigError, HeadraceError
from headrace.engine.client import ThreadClient
from headrace.engine.engine import Engine
from headrace.env import test_data as data_folder
from headrace.lab.bench.report_table import side_by_side
from headrace.lab.bench.trace_bench import percentile
from headrace.lab.bench.trace_drive import Drive
from headrace.lab.bench.trace_file import Arrival, read_trace, scaled
from headrace.worker.fake import FakeWorker

HEAD = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
ROWS = (
    "2023-11-16 18:15:46.6805900,374,44\n"
    "2023-11-16 18:15:50.9951690,396,109\n"
    "2023-11-16 18:15:50.9951690,0,0\n"
    "2023-11-16 18:15:51.5,8000,12\n"
)


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_reading(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", HEAD + ROWS)
    first, second, third = read_trace(path, 3)
    assert (first, third.prompt, third.output) == (Arrival(0.0, 374, 44), 1, 1)
    assert second.at_s == third.at_s == pytest.approx(4.314579)
    assert read_trace(path, 9, skip=3) == [Arrival(0.0, 8000, 12)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b\n1,2\n", ":1: lacks the columns TIMESTAMP, ContextTokens, GeneratedTokens"),
        (HEAD, "holds no arrival after the first 0"),
        (HEAD + "yesterday,1,2\n", ":2: "),
        (HEAD + "2023-11-16 18:15:46,1\n", ":2: "),
        (HEAD + "2023-11-16 18:15:46,1,-2\n", ":2: goes back in time, or has a length beyond reason"),
        (HEAD + "2023-11-16 18:15:46,1,2\n2023-11-16 18:15:45,1,2\n", ":3: goes back in time"),
    ],
)
def test_bad_traces_are_named(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_trace(write(tmp_path / "t.csv", text), 5)
    assert caught.value.field == "trace"
    assert words in str(caught.value)


def test_a_missing_trace_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.csv: No such file"):
        read_trace(tmp_path / "none.csv", 5)


def test_scaling_keeps_outputs_and_cuts_prompts() -> None:
    arrivals = [Arrival(4.0, 8000, 100), Arrival(6.0, 10, 3), Arrival(6.0, 1, 9000)]
    assert scaled(arrivals, 0.5, 0.5, 1000) == [Arrival(2.0, 950, 50), Arrival(3.0, 5, 2), Arrival(3.0, 1, 999)]


def test_the_public_trace_is_read() -> None:
    folder = data_folder()
    if folder is None:
        pytest.skip("HEADRACE_TEST_DATA is not set")
    arrivals = read_trace(folder / "traces" / "AzureLLMInferenceTrace_conv.csv", 20_000)
    assert len(arrivals) == 19_366
    assert (arrivals[0].prompt, arrivals[0].output) == (374, 44)


def test_percentiles() -> None:
    values = [float(i) for i in range(1, 101)]
    assert [percentile(values, p) for p in (1, 50, 95, 99, 100)] == [1, 50, 95, 99, 100]
    assert percentile([7.0], 50) == 7
    assert percentile([2.0, 1.0], 51) == 2


def fake_client(**limits: int) -> ThreadClient:
    settings = {"num_blocks": 1000, "block_size": 16, "token_budget": 256, "max_model_len": 2000} | limits
    return ThreadClient(Engine(Scheduler(**settings), FakeWorker()))


def test_driving_counts_every_token() -> None:
    client = fake_client()
    times = Drive(client, [Arrival(i * 0.01, 5 + i, 1 + i) for i in range(10)], "run").run(30)
    client.close()
    assert times.num_output == sum(range(1, 11))
    assert (len(times.first), len(times.whole), len(times.gaps)) == (10, 10, sum(range(10)))
    assert min(times.first + times.gaps) >= 0
    assert times.total_s >= 0.09
    assert all(whole >= 0 for whole in times.whole)


def test_a_request_that_fails_ends_the_drive() -> None:
    client = fake_client(max_model_len=20)
    with pytest.raises(HeadraceError, match="request run-1 ended with error: prompt: 50 tokens leave no room"):
        Drive(client, [Arrival(0.0, 5, 2), Arrival(0.0, 50, 2)], "run").run(30)
    client.close()


@pytest.mark.parametrize(
    "names", [("voted", "split"), pytest.param(("mixed", "voted", "split"), marks=pytest.mark.slow)], ids=len
)
def test_the_command_compares_on_real_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]
) -> None:
    monkeypatch.setattr("headrace.lab.bench.workload.FIRST_ID", 5)
    monkeypatch.setattr("headrace.lab.bench.workload.LAST_ID", 250)
    trace = write(tmp_path / "t.csv", HEAD + ROWS)
    model = write_model(tmp_path / "model")
    options = [*SMALL[:2], "--threads", "2", "--ranks", "2", "--time-scale", "0.02", "--length-scale", "0.1"]
    arguments = ["bench", "trace", str(trace), "-m", model, *options, "--longest", "200", "--json"]
    document = write(tmp_path / "d.md", "a\n<!-- bench trace: begin -->\nold\n<!-- bench trace: end -->\nz\n")
    arguments += ["--disciplines", ",".join(names), "--table", str(document)]
    result = CliRunner().invoke(build_app(), arguments)
    assert result.exit_code == 0, result.stderr
    plain: dict[str, Any] = json.loads(result.stdout)
    rows = {row["what"]: row for row in plain["rows"]}
    for name in names:
        assert rows[f"{name}: throughput"]["value"]["median"] > 0
        for what in ("time to first token", "between tokens"):
            p50, p95, p99 = (rows[f"{name}: {what}, p{p}"]["value"]["median"] for p in (50, 95, 99))
            assert 0 < p50 <= p95 <= p99
    assert rows["voted: throughput"]["note"].startswith("votes of all ranks: ")
    assert plain["settings"]["output_tokens"] == 4 + 11 + 1 + 1
    assert f"begin -->\n{side_by_side(plain)}<!-- bench trace: end -->\nz\n" in document.read_text()


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (("--disciplines", "mixed,best"), "disciplines"),
        (("--discipline", "voted"), "disciplines"),
        (("--plot", "x.pdf"), "plot"),
        (("--table", "/nowhere.md"), "table"),
        (("--out", "/nowhere/at/all.json"), "out"),
    ],
)
def test_refused_before_any_work(tmp_path: Path, arguments: tuple[str, ...], field: str) -> None:
    trace = write(tmp_path / "t.csv", HEAD + ROWS)
    result = CliRunner().invoke(build_app(), ["bench", "trace", str(trace), *arguments])
    assert result.exit_code == 2
    assert f"{field}:" in result.stderr

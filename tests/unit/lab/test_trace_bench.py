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
        ("", ":1: is empty; the first line names the columns TIMESTAMP"),
        (
            HEAD.replace(",", ";"),
            ":1: lacks the columns TIMESTAMP, ContextTokens, GeneratedTokens: columns are",
        ),
        (HEAD, "t.csv: holds no arrival"),
        (HEAD + "yesterday,1,2\n", ":2: TIMESTAMP is no date and time: 'yesterday'"),
        (HEAD + "2023-11-16 18:15:46,1\n", ":2: GeneratedTokens is missing"),
        (HEAD + "2023-11-16 18:15:46,,1\n", ":2: ContextTokens is missing"),
        (
            HEAD + "2023-11-16 18:15:46,1,-2\n",
            ":2: GeneratedTokens must be a whole number from 0 to 16777216, got '-2'",
        ),
        (HEAD + "2023-11-16 18:15:46,5.0,2\n", ":2: ContextTokens must be a whole number"),
        (HEAD + "2023-11-16 18:15:46,inf,2\n", ":2: ContextTokens must be a whole number"),
        (HEAD + f"2023-11-16 18:15:46,{'9' * 5000},2\n", ":2: ContextTokens must be a whole number"),
        (HEAD + f"2023-11-16 18:15:46,{'9' * 140_000},2\n", "field larger than field limit"),
        (HEAD + "2023-11-16 18:15:46,1,2\n2023-11-16 18:15:45,1,2\n", ":3: TIMESTAMP goes back in time: 2023-11-16 18"),
    ],
)
def test_bad_traces_are_named(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_trace(write(tmp_path / "t.csv", text), 5)
    assert caught.value.field == "trace"
    assert words in str(caught.value)


@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_stamps_with_offsets_and_digits_of_any_number(tmp_path: Path, mark: str) -> None:
    """The form of the public traces of 2024, and what may stand beside it."""
    stamps = ["10 00:00:00+00:00", "10 00:00:00.009930+00:00", "10 02:00:01.5123+02:00", "10 00:00:01.512345678", "11"]
    path = write(tmp_path / "t.csv", mark + HEAD + "".join(f"2024-05-{stamp},5,6\n" for stamp in stamps))
    assert [arrival.at_s for arrival in read_trace(path, 9)] == [0.0, 0.00993, 1.5123, 1.512345, 86_400.0]


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
        (("--disciplines", "mixed, mixed"), "disciplines: mixed is named twice"),
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
    assert f"error: {field}" in result.stderr


@pytest.mark.parametrize("wishes", [("--max-model-len", "100"), ("--length-scale", "1000")])
def test_sequences_that_no_engine_holds_are_refused_before_one_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wishes: tuple[str, ...]
) -> None:
    def started(*_: object, **__: object) -> None:
        raise AssertionError("an engine was started")

    monkeypatch.setattr("headrace.lab.bench.trace_bench.connect", started)
    trace = write(tmp_path / "t.csv", HEAD + ROWS)
    arguments = ["bench", "trace", str(trace), "-m", write_model(tmp_path / "model"), "--longest", "100000", *wishes]
    result = CliRunner().invoke(build_app(), arguments)
    assert result.exit_code == 2
    assert "longest: the trace has sequences of " in result.stderr

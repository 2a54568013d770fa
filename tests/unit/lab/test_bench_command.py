"""``headrace bench`` as a command: options, files, refusals before any work, and small real measurements."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from cli_models import SMALL, write_model
from typer.main import get_command
from typer.testing import CliRunner, Result

from headrace.cli.bench_delivery import BenchFlags, check_target, deliver, figure, parse_counts
from headrace.cli.main import build_app
from headrace.contract.errors import ConfigError, HeadraceError
from headrace.lab.bench import determinism, overlap, scheduler, speculation, verification
from headrace.lab.bench.workload import DECODE_DEPTHS, PREFILL_LENGTHS

ENGINE_SETTINGS = {"model", "dtype", "kv_dtype", "backend", "isa", "num_threads", "graphs", "overlap"}
OFFLINE_COUNTS = ("requests", "length", "tokens")


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(build_app(), ["bench", *arguments])


def reported(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.stderr
    plain: dict[str, Any] = json.loads(result.stdout)
    return plain


@pytest.fixture
def small_workload(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids inside a tiny vocabulary, and limits that are measured in no time."""
    monkeypatch.setattr("headrace.lab.bench.workload.FIRST_ID", 5)
    monkeypatch.setattr("headrace.lab.bench.workload.LAST_ID", 250)
    monkeypatch.setattr("headrace.lab.bench.roofline.buffer_bytes", lambda: 1 << 20)
    monkeypatch.setattr("headrace.lab.bench.roofline.ROUNDS", 1000)


@pytest.mark.parametrize("text", ["", "x", "1,,2", "0", "-1", "1.5", "9999999999"])
def test_counts_that_are_none_name_the_option(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_counts("depths", text)
    assert caught.value.field == "depths"


def test_counts_and_figures() -> None:
    assert parse_counts("rows", "1, 4,4,2") == (1, 4, 2)
    assert parse_counts("rows", None) == ()
    assert [figure(value) for value in (0.01234, 9.876, 123.4, 12345.6)] == ["0.0123", "9.88", "123", "12,346"]


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (("scheduler", "--running", "none"), "running"),
        (("scheduler", "--out", "/nowhere/at/all.json"), "out: /nowhere/at/all.json cannot be written"),
        (("scheduler", "--out", "."), "out: . cannot be written: is a folder"),
        (("scheduler", "--out", ""), "out: . cannot be written: is a folder"),
        (("scheduler", "--out", "/proc/none.json"), "out: /proc/none.json cannot be written"),
        (("scheduler", "--plot", "curve.pdf"), "plot"),
        (("peers", "--only", "nobody"), "only"),
        (("peers", "--table", "/nowhere.md"), "table"),
        (("peers", "--plot", "curve.png"), "plot"),
        (("roofline", "--threads", "0"), "threads"),
        (("ops", "--filter", "nonsense"), "filter"),
        (("ops", "--threads", "0"), "--threads"),
        (("scheduler", "--running", "1000000"), "running"),
        *(
            (("offline", f"--{name}", count), f"--{name}")
            for name in OFFLINE_COUNTS
            for count in ("-1", "0", "99999999")
        ),
    ],
)
def test_bad_options_are_refused_before_any_work(arguments: tuple[str, ...], field: str) -> None:
    result = bench(*arguments)
    assert result.exit_code == 2
    assert field in result.stderr
    assert result.stdout == ""


def test_a_report_goes_to_stdout_and_to_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.lab.bench.scheduler.STEPS", 11)
    out = tmp_path / "r.json"
    plain = reported(bench("scheduler", "--running", "2", "--repeats", "1", "--json", "--out", str(out)))
    assert json.loads(out.read_text()) == plain
    assert plain["machine"]["processors"] >= 1
    table = bench("scheduler", "--running", "2", "--repeats", "1").stdout
    assert "schedule + commit, 2 running" in table


@pytest.mark.usefixtures("small_workload")
@pytest.mark.parametrize(
    ("arguments", "rows"),
    [
        (("latency", "--depths", "16,4000", "--rows", "1,3", "--tokens", "4"), 6),
        (("overlap", "--rows", "1,3", "--tokens", "4"), 14),
        (("determinism", "--rows", "1,3", "--tokens", "4"), 9),
        (("prefill", "--lengths", "16,32"), 2),
        (("offline", "--requests", "3", "--length", "8", "--tokens", "3"), 3),
        (("prefix", "--requests", "3", "--shared", "40", "--length", "8", "--tokens", "3"), 2),
    ],
)
def test_the_engine_is_measured(tmp_path: Path, arguments: tuple[str, ...], rows: int) -> None:
    model = write_model(tmp_path / "m")
    result = bench(*arguments, "--repeats", "1", "--json", "--model", model, *SMALL)
    plain = reported(result)
    assert f"... loading {model}" in result.stderr
    said = [line for line in result.stderr.splitlines() if line.startswith("... ")]
    assert len(said) > 2  # one for each piece of work
    assert len(plain["rows"]) == rows
    settings = plain["settings"]
    assert set(settings) >= ENGINE_SETTINGS - {"overlap"}
    assert (settings["num_threads"], settings["kv_memory"], settings["kv_dtype"]) == (1, 4 << 20, "int16")
    assert all(isinstance(value, str | int | bool | list) and "(" not in str(value) for value in settings.values())
    measured = [row for row in plain["rows"] if row["value"]]
    assert all(row["value"]["median"] > 0 for row in measured if "overlap ratio" not in row["what"])
    missing = [row["note"] for row in plain["rows"] if not row["value"]]
    assert missing == (["the longest sequence is 512 tokens"] if "4000" in arguments[2] else [])


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("offline", "--length", "600"), "length: 600 tokens of a prompt and 64 to generate exceed"),
        (("offline", "--tokens", "600"), "tokens: 128 tokens of a prompt and 600 to generate exceed"),
        (("prefix", "--shared", "500"), "shared: 532 tokens of a prompt and 32 to generate exceed"),
        (("prefill", "--lengths", "512,600"), "lengths: 512 tokens of a prompt and 1 to generate exceed"),
        (("latency", "--depths", "600"), "depths: 600 tokens"),
        (("latency", "--depths", "8", "--rows", "1,65"), "rows: 65 are more than max_seqs, 64"),
        (("overlap", "--tokens", "600"), "tokens: 32 tokens of a prompt"),
        (("determinism", "--tokens", "600"), "tokens: 32 tokens of a prompt"),
        (("profile", "--rows", "100000", "--prompt", "16"), "rows: decode, 100000 rows at depth 128: its KV takes"),
        (("profile", "--tensor-parallel-size", "2"), "tensor_parallel_size: is ignored here"),
        (("profile", "--speculation", "ngram"), "speculation: is ignored here"),
        (("profile", "--prompt", "600"), "prompt: prefill, 600 tokens: the model has 512 positions"),
    ],
)
def test_what_the_engine_cannot_hold_is_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], reason: str
) -> None:
    def measured(*_: object) -> None:
        raise AssertionError("something was measured")

    monkeypatch.setattr("headrace.lab.bench.engine_runs.measure_peaks", measured)
    result = bench(*arguments, "--model", write_model(tmp_path / "m"), *SMALL)
    assert result.exit_code == 2
    assert reason in result.stderr
    assert result.stdout == ""


def test_a_folder_of_gguf_files_and_a_file_that_is_not_there_are_named(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"")
    folder = bench("prefill", "--model", str(tmp_path))
    assert folder.exit_code == 2
    assert str(tmp_path / "model.gguf") in folder.stderr
    assert "there is no such file" in bench("prefill", "--model", str(tmp_path / "other.gguf")).stderr
    assert "is empty" in bench("prefill", "--model", str(tmp_path / "model.gguf")).stderr


def test_a_server_that_does_not_answer_is_told_how_to_start() -> None:
    result = bench("serve", "--url", "http://127.0.0.1:9", "--requests", "1")
    assert result.exit_code == 1
    assert "start `headrace serve`, or say with --url" in result.stderr


def test_a_file_that_fails_after_the_work_costs_neither_table_nor_document() -> None:
    """/dev/full can be opened, and takes nothing."""
    written: list[str] = []
    flags = BenchFlags(out=Path("/dev/full"))
    with pytest.raises(HeadraceError, match=r"^out: /dev/full cannot be written: No space left"):
        deliver({"rows": []}, flags, lambda: written.append("table"), lambda: written.append("document"))
    assert written == ["table", "document"]


def test_a_closed_pipe_costs_no_file(tmp_path: Path) -> None:
    def show() -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        deliver({"rows": []}, BenchFlags(out=tmp_path / "r.json"), show)
    assert json.loads((tmp_path / "r.json").read_text()) == {"rows": []}


def test_trying_a_target_changes_nothing(tmp_path: Path) -> None:
    kept, new = tmp_path / "kept.json", tmp_path / "new.json"
    kept.write_text("old")
    for path in (kept, new, Path("/dev/null")):
        check_target("out", path)
    assert kept.read_text() == "old"
    assert not new.exists()
    (tmp_path / "link").symlink_to("new.json")
    check_target("out", tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert not new.exists()


def test_curves_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib", reason="the bench extra is not installed")
    monkeypatch.setattr("headrace.lab.bench.scheduler.STEPS", 11)
    picture = tmp_path / "curve.png"
    result = bench("scheduler", "--running", "1,2", "--repeats", "1", "--plot", str(picture))
    assert result.exit_code == 0, result.stderr
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_plot_without_matplotlib_is_refused_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = bench("scheduler", "--plot", "curve.png")
    assert result.exit_code == 2
    assert "-m pip install 'matplotlib>=" in result.stderr


@pytest.mark.parametrize(
    ("command", "option", "default"),
    [
        ("latency", "depths", DECODE_DEPTHS),
        ("prefill", "lengths", PREFILL_LENGTHS),
        ("overlap", "rows", overlap.ROWS),
        ("determinism", "rows", determinism.ROWS),
        ("speculation", "streams", speculation.STREAMS),
        ("verification", "streams", verification.STREAMS),
        ("scheduler", "running", scheduler.RUNNING),
        ("profile", "rows", (1,)),
    ],
)
def test_help_says_what_the_numbers_are_and_the_default(command: str, option: str, default: tuple[int, ...]) -> None:
    commands: Any = get_command(build_app())
    [found] = [p for p in commands.commands["bench"].commands[command].params if p.name == option]
    assert found.help.endswith(f"[{','.join(map(str, default))}]")
    assert len(found.help) > 30


def test_a_profile_names_every_op_of_both_steps(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the bench extra is not installed")
    model = write_model(tmp_path)
    picture = tmp_path / "p.png"
    options = ("--rows", "1,3", "--depth", "8", "--prompt", "20", "--repeats", "2")
    plain = reported(bench("profile", "-m", model, *options, "--plot", str(picture), "--json"))
    assert set(plain["settings"]) >= ENGINE_SETTINGS - {"overlap", "graphs"}
    titles = [bars["title"] for bars in plain["bars"]]
    assert titles == ["decode, 1 row at depth 8", "decode, 3 rows at depth 8", "prefill, 20 tokens"]
    for bars in plain["bars"]:
        kinds = {kind for kind, _ in bars["parts"]}
        assert {"paged_attention", "qkv_to_cache"} < kinds
        assert any(kind.startswith("linear") for kind in kinds)
        assert all(value > 0 for _, value in bars["parts"])
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_burstiness_without_a_rate_is_refused() -> None:
    result = bench("serve", "--burstiness", "2")
    assert result.exit_code == 2
    assert "burstiness" in result.stderr

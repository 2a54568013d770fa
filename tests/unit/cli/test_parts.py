"""Small parts of the command line: sizes, option groups, names, errors, interrupts, words."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from headrace.cli import checks
from headrace.cli.console import bytes_text, printable
from headrace.cli.flags import EngineFlags, ReportFlags, SamplingFlags, flagged
from headrace.cli.guard import GuardedCommand, one_line
from headrace.cli.interrupts import Interrupts
from headrace.cli.loading import Loaded, PlainProgress, check_model_name
from headrace.cli.main import build_app
from headrace.cli.model_facts import ranges
from headrace.cli.run import drafts_text
from headrace.contract.errors import ConfigError, HeadraceError, InvalidRequest, PullError, UnknownModel, WorkerError
from headrace.contract.sizes import parse_size


@pytest.mark.parametrize(
    ("text", "count"),
    [("1000", 1000), ("1K", 1024), ("512MiB", 512 << 20), ("1.5g", 3 << 29), (" 2 GB ", 2 << 30), ("3TiB", 3 << 40)],
)
def test_sizes(text: str, count: int) -> None:
    assert parse_size("kv_memory", text) == count


@pytest.mark.parametrize("text", ["", "G", "2X", "-1", "1e9", "2 2"])
def test_sizes_that_are_none_name_the_setting(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_size("kv_memory", text)
    assert caught.value.field == "kv_memory"


def test_flags_beat_the_file_and_the_file_beats_the_defaults(tmp_path: Path) -> None:
    file = tmp_path / "engine.toml"
    file.write_text('dtype = "float32"\n[cache]\nblock_size = 16\n[runtime]\nnum_threads = 3\n')
    config = EngineFlags(config=file, threads=2, kv_memory="1MiB").resolve()
    assert (config.model.dtype, config.cache.block_size, config.runtime.num_threads) == ("float32", 16, 2)
    assert config.cache.kv_memory == 1 << 20
    assert config.model.backend == "cpu"


def test_a_missing_config_file_names_itself(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.toml"):
        EngineFlags(config=tmp_path / "gone.toml").resolve()


@pytest.mark.parametrize(("flag", "value"), [("temperature", -1.0), ("top_p", 0.0), ("max_tokens", -3), ("top_k", -2)])
def test_bad_sampling_is_refused_before_a_model_loads(flag: str, value: float) -> None:
    with pytest.raises(InvalidRequest) as caught:
        SamplingFlags(**{flag: value}).params()
    assert caught.value.field == flag


def test_max_tokens_zero_means_no_limit() -> None:
    assert SamplingFlags(max_tokens=0).params().max_tokens is None


def app_of(command: Any) -> typer.Typer:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command(cls=GuardedCommand)(flagged(command))
    return app


def test_a_group_becomes_options_beside_a_commands_own() -> None:
    seen: list[Any] = []

    def command(report: ReportFlags, name: Annotated[str, typer.Argument()], loud: bool = False) -> None:
        seen.append((report, name, loud))

    result = CliRunner().invoke(app_of(command), ["ann", "--json", "--loud"])
    assert result.exit_code == 0, result.output
    assert seen == [(ReportFlags(as_json=True), "ann", True)]


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (InvalidRequest("top_p", "must\nnot"), 2, "error: top_p: must not"),
        (ConfigError("dtype", "no"), 2, "error: dtype: no"),
        (PullError("m", "gone"), 1, "error: m: gone"),
        (UnknownModel("m", "no such model"), 2, "error: m: no such model"),
        (WorkerError("step failed"), 1, "error: step failed"),
        (OSError(13, "Permission denied", "/x"), 1, "error: /x: Permission denied"),
        (MemoryError(), 1, "error: out of memory"),
        (ZeroDivisionError("oops"), 1, "error: ZeroDivisionError: oops"),
        (HeadraceError("\x1b[2Jgone"), 1, "error: \ufffd[2Jgone"),
    ],
)
def test_errors_are_one_line_and_a_code(error: Exception, code: int, words: str) -> None:
    def command(report: ReportFlags) -> None:
        assert report is not None
        raise error

    result = CliRunner().invoke(app_of(command), [])
    assert result.exit_code == code
    assert result.stdout == ""
    assert result.stderr.startswith(words)
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("flag", ["-v", "--traceback"])
def test_a_traceback_only_when_asked_for(flag: str) -> None:
    def command(report: ReportFlags) -> None:
        assert report is not None
        raise ConfigError("x", "y")

    result = CliRunner().invoke(app_of(command), [flag])
    assert result.exit_code == 2
    assert "Traceback" in result.stderr
    assert result.stderr.endswith("error: x: y\n")


def test_ctrl_c_ends_quietly() -> None:
    def interrupted(report: ReportFlags) -> None:
        assert report is not None
        raise KeyboardInterrupt

    result = CliRunner().invoke(app_of(interrupted), [])
    assert (result.exit_code, result.output) == (130, "")


def test_one_line_of_an_unexpected_error_says_how_to_look_closer() -> None:
    assert "--traceback" in one_line(KeyError("k"))


@pytest.mark.parametrize(
    ("name", "meant"),
    [("smolm2-135m", "Did you mean smollm2-135m-instruct"), ("gemma3-27m", "gemma3-270m"), ("zzz", "models list")],
)
def test_unknown_names_suggest_near_ones(
    name: str, meant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    with pytest.raises(ConfigError, match=meant):
        check_model_name(name)


def test_paths_and_remote_names_pass(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").touch()
    for name in (str(tmp_path), str(tmp_path / "m.gguf"), "hf:a/b", "pypi:a==1", "gemma3-270m", f"dummy:{tmp_path}"):
        check_model_name(name)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.txt").touch()
    with pytest.raises(ConfigError, match=r"not a \.gguf"):
        check_model_name(str(tmp_path / "m.txt"))


def test_the_first_signal_asks_and_the_second_insists() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interrupts() as interrupts:
        assert not interrupts.asked
        os.kill(os.getpid(), signal.SIGTERM)
        assert interrupts.asked
        assert interrupts.exit_code == 143
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_plain_progress_says_each_stage_once(capsys: pytest.CaptureFixture[str]) -> None:
    progress = PlainProgress("m")
    for done in (1, 2, 3):
        progress("pull", done, 3 << 20)
    progress("load", 1, 9)
    progress("start", 0, 2)
    told = "pulling m (3.0 MiB)\nloading m (9 tensors)\nstarting m (2 engines)\n"
    assert capsys.readouterr().err == told


def test_words_for_sizes_and_layers() -> None:
    assert [bytes_text(n) for n in (0, 1023, 1536, 5 << 30)] == ["0 B", "1023 B", "1.5 KiB", "5.0 GiB"]
    assert ranges([0, 1, 2, 4, 6, 7]) == "0-2, 4, 6-7"
    assert ranges([]) == ""


def test_terminals_get_no_control_characters() -> None:
    assert printable("a\tb\nc\x1b[31m\x07é😀") == "a\tb\nc\ufffd[31m\ufffdé😀"


def test_every_check_finds_something_and_none_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "not" / "there"))
    findings = checks.run_checks(offline=True)
    assert {f.status for f in findings} <= {"ok", "note"}, findings
    assert all(f.words for f in findings)
    assert not (tmp_path / "not").exists()  # looking must not create anything


def test_a_broken_setting_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_ISA", "mmx")
    monkeypatch.setenv("HEADRACE_NUM_THREADS", "many")
    broken = {f.name for f in checks.run_checks(offline=True) if f.status == "broken"}
    assert broken == {"instruction set", "threads"}


def test_an_index_that_does_not_answer_is_noted_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "http://ann:secret@127.0.0.1:9/simple")
    finding = checks.check_index()
    assert finding.status == "note"
    assert "127.0.0.1:9" in finding.words
    assert "secret" not in finding.words


@pytest.mark.parametrize("spec", ["nosuch", "dummy:nosuch.json", "hf:nosuch", "pypi:nosuch"])
def test_a_name_that_can_be_no_model_is_bad_input_for_every_command(spec: str) -> None:
    """Also where no list of names is asked first."""
    for command in (["bench", "latency", "-m", spec], ["golden", "check", "-m", spec]):
        result = CliRunner().invoke(build_app(), command)
        assert result.exit_code == 2
        assert f"error: {spec}: " in result.stderr


@pytest.mark.parametrize(
    ("verified", "speculating", "words"),
    [
        (40, True, ["12 of 40 drafts accepted"]),
        (40, False, ["12 of 40 drafts accepted", "paused"]),
        (0, True, ["no draft was worth verifying", "--no-speculation-guard"]),
        (0, False, ["no draft was worth verifying", "paused"]),
    ],
)
def test_what_became_of_drafts_is_said_even_when_there_were_none(
    verified: int, speculating: bool, words: list[str]
) -> None:
    stats = SimpleNamespace(verified_drafts=verified, accepted_drafts=12, speculating=speculating)
    llm: Any = SimpleNamespace(engine=SimpleNamespace(stats=stats))
    text = drafts_text(Loaded(llm, 1.0, speculates=True))
    assert all(word in text for word in words)
    assert ("paused" in text) == (not speculating)
    assert drafts_text(Loaded(llm, 1.0)) == ""

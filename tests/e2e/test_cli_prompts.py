"""``headrace run`` and ``headrace chat`` over a tiny model that reads and writes bytes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from cli_models import SMALL, start, write_model
from typer.testing import CliRunner, Result

from headrace.cli.main import build_app


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_model(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def base_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_model(tmp_path_factory.mktemp("base"), template=False)


@pytest.fixture(scope="module")
def ids_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_model(tmp_path_factory.mktemp("ids"), text=False)


def headrace(*arguments: str, stdin: str | bytes | None = None) -> Result:
    return CliRunner().invoke(build_app(), list(arguments), input=stdin)


def reported(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    value = json.loads(result.stdout)
    assert isinstance(value, dict)
    return value


def test_run_reports_text_counts_and_times(model: str) -> None:
    report = reported(headrace("run", "Hello", "-m", model, *SMALL, "--max-tokens", "8", "--ignore-eos", "--json"))
    assert len(report["token_ids"]) == 8
    assert report["finish_reason"] == "length"
    assert report["usage"] == {"prompt_tokens": 5, "cached_tokens": 0, "completion_tokens": 8}
    assert report["timing"]["load_s"] > 0
    assert report["timing"]["first_token_s"] > 0
    assert report["timing"]["tokens_per_s"] > 0


def test_run_streams_the_same_text_and_nothing_else(model: str) -> None:
    flags = ["-m", model, *SMALL, "--max-tokens", "20", "--temperature", "1.5", "--seed", "3"]
    report = reported(headrace("run", "Hello", *flags, "--json"))
    plain = headrace("run", "Hello", *flags)
    assert report["text"] != ""
    assert plain.stdout == report["text"].removesuffix("\n") + "\n"
    assert "loading" in plain.stderr


@pytest.mark.parametrize("method", ["ngram", "suffix", "self"])
def test_run_with_speculation_gives_the_same_text_and_counts_drafts(model: str, method: str, tmp_path: Path) -> None:
    flags = ["-m", model, *SMALL, "--max-tokens", "30", "--ignore-eos", "--json"]
    settings = tmp_path / "settings.toml"
    settings.write_text("[speculation]\ndraft_layers = 1\n")
    asked = ["--speculation", method, "--no-speculation-guard", "--config", str(settings)]
    plain = reported(headrace("run", "Hello Hello Hello", *flags))
    drafted = reported(headrace("run", "Hello Hello Hello", *flags, *asked))
    assert drafted["token_ids"] == plain["token_ids"]
    assert drafted["usage"] == plain["usage"]
    assert 0 <= drafted["drafts"]["accepted"] <= drafted["drafts"]["verified"]
    assert drafted["drafts"]["verified"] > 0
    assert "drafts" not in plain


def test_run_refuses_a_speculation_it_does_not_know(model: str) -> None:
    result = headrace("run", "Hello", "-m", model, *SMALL, "--speculation", "magic")
    assert result.exit_code == 2
    assert "speculation" in result.stderr


def test_the_prompt_may_come_from_standard_input(model: str) -> None:
    flags = ["-m", model, *SMALL, "--max-tokens", "4", "--json"]
    piped = reported(headrace("run", "-", *flags, stdin="Grüße\n"))
    assert piped["token_ids"] == reported(headrace("run", "Grüße", *flags))["token_ids"]
    assert piped["usage"]["prompt_tokens"] == len("Grüße".encode())


def test_standard_input_must_be_utf8(model: str) -> None:
    result = headrace("run", "-", "-m", model, *SMALL, stdin=b"\xff\xfe")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: prompt: standard input is not UTF-8 (byte 0)")


def test_a_model_without_tokenizer_takes_and_gives_ids(ids_model: str) -> None:
    flags = ["-m", ids_model, *SMALL, "--max-tokens", "5"]
    report = reported(headrace("run", "--token-ids", "1, 2,3", *flags, "--json"))
    plain = headrace("run", "--token-ids", "1 2 3", *flags)
    assert plain.stdout == " ".join(map(str, report["token_ids"])) + "\n"
    assert report["text"] == ""
    refused = headrace("run", "text", *flags)
    assert refused.exit_code == 2
    assert "prompt_token_ids" in refused.stderr


def test_stop_ends_the_text_before_the_stop_string(model: str) -> None:
    flags = ["-m", model, *SMALL, "--max-tokens", "40", "--temperature", "1", "--seed", "5", "--json"]
    whole = reported(headrace("run", "Hello", *flags))["text"]
    stop = next(c for c in whole[3:] if c.isascii() and c.isprintable())
    cut = reported(headrace("run", "Hello", *flags, "--stop", stop))
    assert cut["text"] == whole[: whole.index(stop)]
    assert (cut["finish_reason"], cut["stop_reason"]) == ("stop", stop)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "prompt: is missing"),
        (["x", "--token-ids", "1"], "prompt: give a prompt or --token-ids"),
        (["--token-ids", "1,b"], "token_ids: must be whole numbers"),
        (["--token-ids", "9999"], "outside the vocabulary"),
        ([""], "prompt: must not be empty"),
        (["x" * 600], "leave no room to generate"),
        (["x", "--top-p", "7"], "top_p: must lie"),
        (["x", "--backend", "tpu"], "backend: must be cpu or reference"),
        (["x", "--kv-memory", "1"], "kv_memory:"),
        (["x", "--kv-memory", "lots"], "kv_memory: must be a size"),
        (["x", "--max-model-len", "99999"], "max_model_len: 99999 exceeds"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(model: str, arguments: list[str], words: str) -> None:
    result = headrace("run", "-m", model, *SMALL, *arguments)
    assert result.exit_code == 2
    last = result.stderr.splitlines()[-1]
    assert last.startswith("error: ")
    assert words in last
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def test_a_broken_model_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "cut.gguf").write_bytes(b"GGUF\x03\0\0\0\x05")
    result = headrace("run", "x", "-m", str(tmp_path / "cut.gguf"))
    assert result.exit_code == 2
    assert "cut.gguf" in result.stderr


def test_verbose_says_pool_and_counts_on_stderr(model: str) -> None:
    result = headrace("run", "Hello", "-m", model, *SMALL, "--max-tokens", "3", "-v")
    assert "KV pool:" in result.stderr
    assert "5 prompt tokens" in result.stderr
    assert "KV pool" not in result.stdout


def test_record_writes_a_recording(model: str, tmp_path: Path) -> None:
    file = tmp_path / "flight.jsonl"
    reported(headrace("run", "Hello", "-m", model, *SMALL, "--max-tokens", "3", "--record", str(file), "--json"))
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert lines[0]["format"] == 1
    assert len(lines) > 3


def test_chat_answers_one_message_through_the_template(model: str) -> None:
    flags = ["-m", model, *SMALL, "--max-tokens", "6", "--ignore-eos", "--json"]
    report = reported(headrace("chat", "Hi", *flags))
    assert report["usage"]["prompt_tokens"] == 2 + len(["<|user|>", "<|end|>", "<|answer|>"])
    with_system = reported(headrace("chat", "Hi", "--system", "Yes", *flags))
    assert with_system["usage"]["prompt_tokens"] == report["usage"]["prompt_tokens"] + 5


def test_a_conversation_remembers_until_reset(model: str) -> None:
    flags = ["-m", model, *SMALL, "--max-tokens", "4", "--ignore-eos", "--json"]
    result = headrace("chat", *flags, stdin="One\nTwo\n/reset\nOne\n/exit\nignored\n")
    first, second, third = (json.loads(line) for line in result.stdout.splitlines())
    assert second["usage"]["prompt_tokens"] > first["usage"]["prompt_tokens"] + 3
    assert third["token_ids"] == first["token_ids"]
    assert third["usage"]["prompt_tokens"] == first["usage"]["prompt_tokens"]


def test_a_message_that_is_too_long_does_not_end_the_conversation(model: str) -> None:
    flags = ["-m", model, *SMALL, "--max-tokens", "4", "--json"]
    result = headrace("chat", *flags, stdin="x" * 2000 + "\nOne\n")
    assert result.exit_code == 0
    assert "error: prompt:" in result.stderr
    assert "/reset" in result.stderr
    alone = headrace("chat", "One", *flags)
    assert json.loads(result.stdout)["token_ids"] == json.loads(alone.stdout)["token_ids"]


def test_a_base_model_cannot_chat_and_says_what_can(base_model: str) -> None:
    result = headrace("chat", "Hi", "-m", base_model, *SMALL)
    assert result.exit_code == 2
    assert "chat template" in result.stderr
    assert "headrace run" in result.stderr


@pytest.fixture
def endless(tmp_path: Path) -> list[str]:
    """Arguments of a run that goes on for minutes unless it is stopped."""
    model = write_model(tmp_path, max_position_embeddings=1 << 18)
    return ["run", "Hello", "-m", model, "--kv-memory", "128MiB", "--max-tokens", "0", "--ignore-eos"]


def test_ctrl_c_ends_a_run_with_130_and_no_traceback(endless: list[str]) -> None:
    process = start(*endless, "--temperature", "1")
    assert process.stdout is not None
    assert process.stdout.read(1)  # it generates
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert b"Traceback" not in err


def test_ctrl_c_under_json_still_reports_what_there_is(endless: list[str], tmp_path: Path) -> None:
    recording = tmp_path / "flight.jsonl"
    process = start(*endless, "--json", "--record", str(recording))
    deadline = time.monotonic() + 60
    while not recording.exists() or recording.stat().st_size < 1000:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    report = json.loads(out)
    assert report["finish_reason"] == "abort"
    assert report["usage"]["prompt_tokens"] == 5


def test_a_reader_that_leaves_ends_the_run_quietly(endless: list[str]) -> None:
    process = start(*endless)
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.read(1)
    process.stdout.close()
    err = process.stderr.read()
    assert process.wait(timeout=60) == 141
    assert b"Traceback" not in err
    assert b"Exception ignored" not in err


def test_reports_about_models_and_the_machine(model: str) -> None:
    facts = reported(headrace("models", "show", model, "--json"))
    assert facts["architecture"] == "LlamaForCausalLM"
    assert facts["context_tokens"] == 512
    assert facts["kv"]["bytes_per_token"] == 2 * 2 * 2 * 8 * 4  # keys and values, layers, heads, head size, float32
    assert facts["kv"]["groups"] == [{"kind": "full", "window": 0, "layers": "0-1", "bytes_per_token": 256}]
    assert facts["tokenizer"]["chat_template"] is True
    assert facts["num_parameters"] > 272 * 32
    assert "full attention, layers 0-1" in headrace("models", "show", model).stdout

    names = json.loads(headrace("models", "list", "--json").stdout)
    assert [entry["name"] for entry in names if entry["default"]] == ["smollm2-135m-instruct"]
    assert reported(headrace("doctor", "--offline", "--json"))["ok"] is True
    matrix = json.loads(headrace("doctor", "--ops", "--json").stdout)
    assert {entry["backend"] for entry in matrix} >= {"cpu", "reference"}
    assert "paged_attention" in headrace("doctor", "--ops").stdout


def test_a_model_that_is_not_pulled_says_how_to_pull_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    result = headrace("models", "show", "gemma3-270m")
    assert result.exit_code == 1
    assert "headrace models pull gemma3-270m" in result.stderr


def test_bench_ops_times_the_cases_asked_for() -> None:
    report = reported(headrace("bench", "ops", "--filter", "silu_mul-64", "--repeats", "1", "--json"))
    assert [row["what"] for row in report["rows"]] == ["silu_mul-64x1536"]
    assert report["rows"][0]["value"]["median"] > 0
    refused = headrace("bench", "ops", "--filter", "nonsense")
    assert refused.exit_code == 2
    assert "filter: no case" in refused.stderr


def test_python_dash_m_and_version() -> None:
    process = start("--version", stderr=subprocess.STDOUT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert out.startswith(b"headrace ")


def test_doctor_works_when_the_extensions_do_not() -> None:
    code = (
        "import sys\n"
        "sys.modules['headrace._core'] = sys.modules['headrace._kernels'] = None\n"
        "from headrace.cli.main import main\n"
        "sys.argv = ['headrace', *sys.argv[1:]]\n"
        "main()\n"
    )
    doctor = subprocess.run(
        [sys.executable, "-c", code, "doctor", "--offline", "--json"], capture_output=True, timeout=60
    )
    assert doctor.returncode == 1, doctor.stderr
    broken = {check["name"]: check for check in json.loads(doctor.stdout)["checks"] if check["status"] == "broken"}
    assert "pip install" in broken["extensions"]["words"]
    run = subprocess.run([sys.executable, "-c", code, "run", "x"], capture_output=True, timeout=60)
    assert run.returncode == 1
    assert b"headrace doctor" in run.stderr
    assert b"Traceback" not in run.stderr


def test_explain_reads_what_record_wrote(model: str, tmp_path: Path) -> None:
    file = tmp_path / "flight.jsonl"
    reported(headrace("run", "Hello", "-m", model, *SMALL, "--max-tokens", "3", "--record", str(file), "--json"))
    result = headrace("explain", str(file), "--check")
    assert result.exit_code == 0, result.output
    assert headrace("explain", str(tmp_path / "gone")).exit_code == 2


@pytest.mark.model
def test_the_default_model_answers() -> None:
    report = reported(
        headrace("run", "The capital of France is", "--max-tokens", "5", "--kv-memory", "64MiB", "--json")
    )
    assert report["token_ids"] == [7042, 30, 198, 198, 504]
    assert report["model"] == "smollm2-135m-instruct"

"""``headrace generate``: whatever stops a batch, the next run finishes it, each line answered once."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from cli_models import records, start, write_model

LINES = 120
FLAGS = ["--threads", "1", "--kv-memory", "128MiB", "--ignore-eos", "--max-tokens", "24"]
ENDLESS = {"id": "endless", "prompt": "On and on", "max_tokens": 200_000}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_model(tmp_path_factory.mktemp("text"), max_position_embeddings=1 << 18)


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ids and numbers mixed, and a bad line in the middle."""
    path = tmp_path_factory.mktemp("prompts") / "in.jsonl"
    lines: list[str] = []
    for i in range(1, LINES + 1):
        wish: dict[str, Any] = {"prompt": f"Prompt number {i}"} | ({"id": f"p{i}"} if i % 2 else {})
        lines.append("{ this is not JSON" if i == 60 else json.dumps(wish))
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def expected(model: str, prompts: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What a run that nothing stops writes, by line."""
    out = tmp_path_factory.mktemp("whole") / "out.jsonl"
    report = finish(generate(model, prompts, out))
    assert (report["completed"], report["failed"], report["skipped"]) == (LINES - 1, 1, 0)
    assert report["completion_tokens"] == 24 * (LINES - 1)
    return by_line(out)


def generate(model: str, prompts: Path, out: Path, *more: str, **options: Any) -> subprocess.Popen[bytes]:
    return start("generate", "-i", str(prompts), "-o", str(out), "-m", model, *FLAGS, "--json", *more, **options)


def finish(process: subprocess.Popen[bytes], code: int | None = None) -> dict[str, Any]:
    """The summary of a run that ended with ``code``; by default 3 when lines of it failed, else 0."""
    out, err = process.communicate(timeout=120)
    assert b"Traceback" not in err
    report = json.loads(out)
    assert isinstance(report, dict)
    wanted = code if code is not None else 3 if report["failed"] else 0
    assert process.returncode == wanted, err.decode()
    return report


def by_line(out: Path) -> list[dict[str, Any]]:
    """Records in the input's order, without what depends on timing: how much was cached."""
    found = sorted(records(out), key=lambda record: record["line"])
    for record in found:
        record.get("usage", {}).pop("cached_tokens", None)
    return found


def wait_for_records(out: Path, count: int) -> None:
    """Until the file holds ``count`` whole records."""
    deadline = time.monotonic() + 90
    while not out.exists() or out.read_bytes().count(b"\n") < count:
        assert time.monotonic() < deadline, "the batch does not move"
        time.sleep(0.002)


def test_one_bad_line_does_not_cost_the_others(expected: list[dict[str, Any]]) -> None:
    assert [record["line"] for record in expected] == list(range(1, LINES + 1))
    bad = expected[59]
    assert (bad["id"], bad["error"]["field"]) == (None, "line")
    assert all(len(r["token_ids"]) == 24 for r in expected if r is not bad)
    assert [r["id"] for r in expected[:4]] == ["p1", None, "p3", None]


def unending(prompts: Path, folder: Path, after: int) -> Path:
    """The same input with a line in it that a run never gets past, so that a signal always finds the run at work."""
    lines = prompts.read_text().splitlines()
    path = folder / "unending.jsonl"
    path.write_text("\n".join([*lines[:after], json.dumps(ENDLESS), *lines[after:]]))
    return path


def test_a_run_killed_again_and_again_is_finished_by_the_last(
    model: str, prompts: Path, expected: list[dict[str, Any]], tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    for count in (1, 30, 70):
        process = generate(model, unending(prompts, tmp_path, LINES), out)
        wait_for_records(out, count)
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        with out.open("ab") as file:
            file.write(b'{"id":"p9","line":9,"te')  # what a kill in the middle of a write leaves
    before = out.read_bytes().count(b"\n")
    report = finish(generate(model, prompts, out))
    assert report["skipped"] == before >= 70
    assert by_line(out) == expected


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_asked_to_stop_stops_between_two_steps(
    model: str, prompts: Path, expected: list[dict[str, Any]], tmp_path: Path, signum: signal.Signals
) -> None:
    out = tmp_path / "out.jsonl"
    process = generate(model, unending(prompts, tmp_path, 3), out, "--config", str(one_at_a_time(tmp_path)))
    wait_for_records(out, 3)
    process.send_signal(signum)
    report = finish(process, 128 + signum)
    assert (report["interrupted"], report["completed"]) == (True, 3)
    assert by_line(out) == expected[:3]


def one_at_a_time(folder: Path) -> Path:
    path = folder / "one.toml"
    path.write_text("[scheduler]\nmax_seqs = 1\n")
    return path


def test_a_full_disk_is_a_clear_error_and_the_run_resumes(
    model: str, prompts: Path, expected: list[dict[str, Any]], tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"

    def limit_file_size() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))

    process = generate(model, prompts, out, preexec_fn=limit_file_size)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert b"Traceback" not in err
    last = err.decode().splitlines()[-1]
    assert last.startswith("error: output: no space left to write")
    assert "resume" in last
    assert 0 < len(records(out)) < LINES
    assert out.read_bytes().endswith(b"\n")
    finish(generate(model, prompts, out))
    assert by_line(out) == expected


def test_two_runs_on_one_output_at_once_are_refused(model: str, prompts: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    first = generate(model, unending(prompts, tmp_path, 0), out)
    wait_for_records(out, 1)
    second = generate(model, prompts, out)
    _, err = second.communicate(timeout=60)
    assert second.returncode == 1
    assert b"another run is writing" in err
    first.kill()
    first.communicate()
    assert finish(generate(model, prompts, out))["failed"] <= 1  # the lock died with its holder


@pytest.mark.parametrize(("which", "words"), [("input", b"error: output: is the input"), ("gone", b"error: input: ")])
def test_files_that_cannot_be_are_refused_before_loading(
    model: str, prompts: Path, tmp_path: Path, which: str, words: bytes
) -> None:
    source = prompts if which == "input" else tmp_path / "gone.jsonl"
    before = prompts.read_bytes()
    process = generate(model, source, prompts if which == "input" else tmp_path / "out.jsonl")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert err.startswith(words)
    assert prompts.read_bytes() == before


def test_conversations_ids_choices_and_logprobs(model: str, tmp_path: Path) -> None:
    wishes = [
        {"id": 1, "messages": [{"role": "user", "content": "Hi"}]},
        {"id": 2, "prompt_token_ids": [1, 2, 3], "max_tokens": 2, "logprobs": 1},
        {"id": 3, "prompt": "x", "n": 2, "temperature": 1, "seed": 5},
        {"id": 3, "prompt": "the same id again"},
    ]
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("\n".join(map(json.dumps, wishes)))
    finish(generate(model, source, out))
    chat, ids, two, twice = by_line(out)
    assert chat["usage"]["prompt_tokens"] == 5
    assert (len(ids["token_ids"]), len(ids["logprobs"])) == (2, 2)
    assert ids["logprobs"][0][0]["token_id"] == ids["token_ids"][0]
    assert len(two["choices"]) == 2
    assert two["choices"][0]["token_ids"] == two["token_ids"] != two["choices"][1]["token_ids"]
    assert (twice["id"], twice["error"]["field"]) == (None, "id")
    assert finish(generate(model, source, out))["skipped"] == 4

"""Comparisons with fake engines in real processes: order, deadlines, deaths, tables."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.contract.errors import ConfigError
from headrace.lab.bench import environments, peer_process
from headrace.lab.bench.compare import Comparison, Plan, compare
from headrace.lab.bench.contenders import CONTENDERS, Contender, chosen
from headrace.lab.bench.documents import BRIEF, WHOLE, Place, insert
from headrace.lab.bench.environments import ENVIRONMENTS, Environment, ensure
from headrace.lab.bench.peer_process import PeerError, PeerProcess
from headrace.lab.bench.scheduler import bench_scheduler
from headrace.lab.bench.scheduler_peer import PeerScheduler
from headrace.lab.bench.table import accurate, brief, grid, markdown, reasons, verdict
from headrace.lab.bench.tasks import all_tasks, batch, chosen_tasks, decode, prefill, step
from headrace.lab.bench.workload import Batch

DEADLINE_S = 60.0
NOT_TASKS = (
    "process start to first token",
    "peak memory at the first token",
    "peak memory, after all of this",
    "perplexity",
)
Start = Callable[[Contender], PeerProcess]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The real runner program with the fake engine beside it."""
    folder = tmp_path / "program"
    folder.mkdir()
    shutil.copy(peer_process.SERVE, folder)
    shutil.copy(Path(__file__).with_name("peer_fake.py"), folder)
    monkeypatch.setattr(peer_process, "SERVE", folder / "serve.py")
    return folder


@pytest.fixture
def start(program: Path, tmp_path: Path) -> Iterator[Start]:
    del program
    started: list[PeerProcess] = []

    def launch(contender: Contender) -> PeerProcess:
        started.append(PeerProcess(Path(sys.executable), contender.runner, tmp_path / "peer.log", {"COLOUR": "blue"}))
        return started[-1]

    yield launch
    for process in started:
        process.close()
        assert not process.alive


def fake(name: str, **options: Any) -> Contender:
    return Contender(name, "peer_fake", "nowhere", "Q4_1", {"name": name, **options})


def plan(*tasks: Any, rounds: int = 2) -> Plan:
    return Plan(tasks, [[1, 2, 3]], 1, rounds, DEADLINE_S, DEADLINE_S)


def run(start: Start, contenders: list[Contender], *tasks: Any, rounds: int = 2) -> Comparison:
    return compare(contenders, plan(*tasks, rounds=rounds), start, lambda _: "model.gguf", lambda _: None)


# -- one process --------------------------------------------------------------------------------------------------


def test_a_runner_answers_in_turn_and_its_noise_goes_to_the_log(start: Start, tmp_path: Path) -> None:
    process = start(fake("a"))
    assert process.ask("load", DEADLINE_S, model="m", threads=1)["version"] == "fake 1.0"
    assert process.peak_rss_bytes > 1 << 20
    assert "noise on stdout" in (tmp_path / "peer.log").read_text()


def test_what_a_runner_cannot_do_or_fails_at_is_an_error_and_it_lives_on(start: Start) -> None:
    process = start(fake("a"))
    with pytest.raises(PeerError, match="cannot fly"):
        process.ask("fly", DEADLINE_S)
    with pytest.raises(PeerError, match="ValueError: m: cannot load"):
        process.ask("load", DEADLINE_S, model="m", threads=1, load=True)
    assert process.ask("load", DEADLINE_S, model="m", threads=1)


def test_a_runner_that_is_too_slow_is_ended(start: Start) -> None:
    process = start(fake("a"))
    process.ask("load", DEADLINE_S, model="m", threads=1)
    with pytest.raises(PeerError, match="sleep took more than"):
        process.ask("sleep", 0.05, seconds=600)
    assert not process.alive
    with pytest.raises(PeerError, match="ended"):
        process.ask("load", DEADLINE_S, model="m", threads=1)


def test_a_runner_that_dies_leaves_its_last_words(start: Start) -> None:
    process = start(fake("a"))
    process.ask("load", DEADLINE_S, model="m", threads=1, die_at=2)
    with pytest.raises(PeerError, match=r"ended \(3\): last words"):
        process.ask("generate", DEADLINE_S, prompts=[[1, 2]], max_tokens=1)


def test_a_stopped_runner_does_nothing_until_it_is_woken(start: Start) -> None:
    process = start(fake("a"))
    process.ask("load", DEADLINE_S, model="m", threads=1)
    process.pause()
    until = time.monotonic() + DEADLINE_S
    while _state(process) != "T" and time.monotonic() < until:
        time.sleep(0.01)
    assert _state(process) == "T"
    process.resume()
    assert process.ask("sleep", DEADLINE_S, seconds=0) == {}


ABANDON = """
import os, sys
from pathlib import Path
from headrace.lab.bench import peer_process
peer_process.SERVE = Path(sys.argv[1]) / "serve.py"
process = peer_process.PeerProcess(Path(sys.executable), "peer_fake", Path(sys.argv[1]) / "log")
process.ask("load", 60.0, model="m", threads=1)
process.pause()
print(process._process.pid, flush=True)
os.kill(os.getpid(), 9)
"""


def test_a_stopped_runner_ends_when_its_starter_is_killed(program: Path) -> None:
    done = subprocess.run([sys.executable, "-c", ABANDON, str(program)], capture_output=True, text=True)
    assert done.returncode == -9, done.stderr
    pid, until = int(done.stdout), time.monotonic() + DEADLINE_S
    while _lives(pid) and time.monotonic() < until:
        time.sleep(0.01)
    assert not _lives(pid)


def _lives(pid: int) -> bool:
    """Whether there is such a process, other than as an entry that nobody has collected yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _state(process: PeerProcess) -> str:
    return Path(f"/proc/{process._process.pid}/stat").read_text().rpartition(")")[2].split()[0]


# -- comparisons --------------------------------------------------------------------------------------------------


def test_contenders_take_turns_and_the_first_round_does_not_count(start: Start, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    both = [fake("a", journal=str(journal)), fake("b", journal=str(journal))]
    result = run(start, both, prefill(5, DEADLINE_S), rounds=2)
    assert result.plain()["threads"] == 1
    played = [line for line in journal.read_text().splitlines() if line.endswith("generate 5")]
    assert played == ["a generate 5", "b generate 5"] * 3
    cell = result.cells["prefill, 5 tokens"]["a"].value
    assert cell is not None
    assert cell.runs == 2


def test_what_there_is_after_each_task_can_be_kept(start: Start) -> None:
    seen: list[list[str]] = []
    tasks = (prefill(5, DEADLINE_S), prefill(6, DEADLINE_S))
    compare(
        [fake("a")],
        plan(*tasks, rounds=1),
        start,
        lambda _: "model.gguf",
        lambda _: None,
        keep=lambda sofar: seen.append([name for name in sofar.cells if name.startswith("prefill")]),
    )
    assert seen == [["prefill, 5 tokens"], ["prefill, 5 tokens", "prefill, 6 tokens"]]


def test_tasks_turn_answers_into_figures(start: Start) -> None:
    tasks = (
        prefill(6, DEADLINE_S),
        decode(4, 3, DEADLINE_S),
        batch("batch", Batch(2, 4, 3), DEADLINE_S),
        step(4, DEADLINE_S),
    )
    result = run(start, [fake("a", speed=2.0)], *tasks, rounds=1)
    medians = [result.cells[task.name]["a"].value.median for task in tasks]  # type: ignore[union-attr]
    assert result.more_is_better == {task.name: task is not tasks[-1] for task in tasks} | dict.fromkeys(
        NOT_TASKS, False
    )
    # the fake takes (1 + tokens) / speed in all, 1 / speed of it for the first; a step takes rows / speed
    assert medians == [6 / (2 / 2), 3 / (4 / 2), 6 / (7 / 2), 1e3 * 4 / 2]
    assert result.cells["perplexity"]["a"].value.median == pytest.approx(2.718281828)  # type: ignore[union-attr]


def test_a_long_prompt_gives_two_lines(start: Start) -> None:
    result = run(start, [fake("a", speed=2.0)], decode(2000, 3, DEADLINE_S), rounds=2)
    first, rest = (result.cells[name]["a"].value for name in list(result.cells)[2:4])
    assert list(result.cells)[2:4] == ["prefill, 2000 tokens", "decode, one stream, 3 tokens at depth 2000"]
    assert (first.median, rest.median) == (2000 / (1 / 2), 3 / (4 / 2))  # type: ignore[union-attr]


def test_the_slow_are_not_warmed_up_and_have_two_rounds(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.lab.bench.compare.SLOW_S", 0.0)
    cell = run(start, [fake("a")], prefill(5, DEADLINE_S), rounds=5).cells["prefill, 5 tokens"]["a"].value
    assert cell is not None
    assert cell.runs == 2


def test_failures_are_cells_and_end_nothing_else(start: Start) -> None:
    contenders = [fake("broken", load=True), fake("mortal", die_at=6), fake("sound")]
    result = run(start, contenders, prefill(6, DEADLINE_S), prefill(7, DEADLINE_S), rounds=1)
    first, second = result.cells["prefill, 6 tokens"], result.cells["prefill, 7 tokens"]
    assert "cannot load" in first["broken"].why_not
    assert "last words" in first["mortal"].why_not
    assert "last words" in second["mortal"].why_not
    assert first["sound"].value is not None
    assert second["sound"].value is not None
    assert result.cells["peak memory, after all of this"]["broken"].value is None
    assert json.loads(json.dumps(result.plain()))["bench"] == "peers"


def test_an_environment_that_cannot_be_made_is_a_cell_too(start: Start) -> None:
    def launch(contender: Contender) -> PeerProcess:
        if contender.name == "absent":
            raise PeerError("installation failed; see a log")
        return start(contender)

    result = run(launch, [fake("absent"), fake("present")], prefill(3, DEADLINE_S), rounds=1)
    assert result.cells["prefill, 3 tokens"]["absent"].why_not == "installation failed; see a log"
    assert result.cells["prefill, 3 tokens"]["present"].value is not None


def test_contenders_are_chosen_by_parts_of_their_names() -> None:
    assert [each.name for each in chosen("vllm, Q4_0")] == ["llama.cpp Q4_0", "vLLM fp32"]
    assert chosen(None) == CONTENDERS
    with pytest.raises(ConfigError, match="only"):
        chosen("vllm,nobody")
    assert {each.environment for each in CONTENDERS} - {None} == set(ENVIRONMENTS)


def test_tasks_are_chosen_by_parts_of_their_names() -> None:
    tasks = all_tasks(1.0)
    assert [task.name for task in chosen_tasks(tasks, "512 tokens,Offline")] == [tasks[0].name, tasks[4].name]
    assert chosen_tasks(tasks, None) is tasks
    with pytest.raises(ConfigError, match="tasks"):
        chosen_tasks(tasks, "knitting")


def test_another_scheduler_takes_turns_with_ours(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.lab.bench.scheduler.STEPS", 12)
    peer = PeerScheduler("fake", start(fake("fake")), "model")
    report = bench_scheduler((2,), repeats=2, peer=peer)
    figures = {row.what: row.value.median for row in report.rows if row.value}
    assert figures["fake: schedule + update, 2 running"] == pytest.approx(2e6)  # as many seconds as prompts
    assert figures["fake: prefix lookup of 8192 tokens, hashes computed"] == pytest.approx(50)
    assert figures["fake: hashing 8192 tokens"] == pytest.approx(8192)
    assert report.settings["peer"] == "fake 1.0"


# -- environments -------------------------------------------------------------------------------------------------


def test_an_environment_is_made_once_and_again_when_its_pins_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[list[str]] = []
    monkeypatch.setattr(environments.venv, "create", lambda *_, **__: None)
    monkeypatch.setattr(environments, "_run", lambda command, _log: made.append(command))
    wanted = Environment("e", ("a==1",), build={"FLAG": "on"}, without=("b",))
    for _ in range(2):
        assert ensure(wanted, tmp_path, lambda _: None) == tmp_path / "e" / "venv" / "bin" / "python"
    assert [command[-1] for command in made] == ["a==1", "b"]
    assert made[0][:2] == ["env", "FLAG=on"]
    ensure(Environment("e", ("a==2",)), tmp_path, lambda _: None)
    assert len(made) == 3


def test_a_failed_installation_names_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments.venv, "create", lambda *_, **__: None)
    with pytest.raises(PeerError, match=r"install\.log"):
        ensure(Environment("e", ("a==1",)), tmp_path, lambda _: None)  # there is no such Python
    assert not (tmp_path / "e" / "installed.txt").exists()


def test_every_pin_is_exact() -> None:
    assert all("==" in pin for each in ENVIRONMENTS.values() for pin in each.pins)


# -- tables -------------------------------------------------------------------------------------------------------


def cell(median: float | None, why: str = "") -> dict[str, Any]:
    value = None if median is None else {"median": median, "low": median - 1, "high": median + 1, "runs": 3}
    return {"value": value, "why_not": why}


def comparison(**changes: Any) -> dict[str, Any]:
    rates = {"headrace Q4_1": cell(30), "headrace fp32": cell(10), "quick": cell(50), "fair": cell(15)}
    times = {"headrace Q4_1": cell(4), "headrace fp32": cell(9), "quick": cell(1), "fair": cell(2)}
    losses = {"headrace Q4_1": cell(20.1), "headrace fp32": cell(20), "quick": cell(25), "fair": cell(20.2)}
    return {
        "machine": {"cpu": "C", "processors": 2, "vector_flags": [], "load_average": 0.1, "date": "today"},
        "threads": 2,
        "versions": {"fair": "fair 1.0 (a|b)"},
        "units": {"decode": "tok/s", "step": "ms", "perplexity": ""},
        "more_is_better": {"decode": True, "step": False, "perplexity": False},
        "cells": {"decode": rates, "step": times, "perplexity": losses},
    } | changes


def test_who_rounds_harder_is_not_ranked() -> None:
    assert accurate(comparison()) == {"headrace Q4_1": True, "headrace fp32": True, "quick": False, "fair": True}
    decided = verdict(comparison(), "decode")
    assert decided is not None
    assert (decided.ours, decided.peer, decided.ratio) == ("headrace Q4_1", "fair", 2.0)


def test_a_peer_ahead_is_said_to_be_ahead() -> None:
    decided = verdict(comparison(), "step")
    assert decided is not None
    assert decided.ratio == 0.5
    assert decided.words.startswith("fair;")


def test_without_figures_there_is_no_verdict() -> None:
    lonely = comparison()
    lonely["cells"]["decode"]["fair"] = cell(None, "too slow")
    assert verdict(lonely, "decode") is None
    assert reasons(lonely) == ["fair: no decode: too slow"]
    assert verdict(comparison(), "perplexity") is None


def test_the_table_has_every_contender_in_every_row() -> None:
    headings, rows = grid(comparison())
    assert headings == ["", "unit", "headrace Q4_1", "headrace fp32", "quick †", "fair", "ahead"]
    assert all(len(row) == len(headings) for row in rows)
    assert rows[0][2] == "30 (29–31)"
    text = markdown(comparison() | {"units": {"decode": "a|b", "step": "ms", "perplexity": ""}})
    assert "| decode | a\\|b | 30 (29–31) |" in text  # a bar in a cell must not end it
    assert "- fair: fair 1.0 (a|b)" in text
    assert "2 processors" in text
    assert "today; 2 threads each." in text


def test_the_short_table_says_who_is_ahead_and_who_is_not() -> None:
    text = brief(comparison())
    assert "today; 2 threads each. Medians." in text
    assert "| decode | tok/s | 30 (headrace Q4_1) | 15 (fair) | 2.00× |" in text
    assert "| step | ms |" in text
    assert "0.50× (behind) |" in text
    assert "perplexity" not in text


@pytest.mark.parametrize("place", [WHOLE, BRIEF], ids=["whole", "brief"])
def test_the_table_goes_between_its_markers_and_nowhere_else(tmp_path: Path, place: Place) -> None:
    document = tmp_path / "d.md"
    document.write_text(f"before\n{place.begin}\nold \\1\n{place.end}\nafter\n")
    for _ in range(2):
        insert(document, comparison())
        table = place.table(comparison())
        assert document.read_text() == f"before\n{place.begin}\n{table}{place.end}\nafter\n"
    for broken in ("no markers", f"{place.end}\n{place.begin}", f"{place.begin}{place.begin}{place.end}"):
        document.write_text(broken)
        with pytest.raises(ConfigError, match="table"):
            insert(document, comparison())
        assert document.read_text() == broken

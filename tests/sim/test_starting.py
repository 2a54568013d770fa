"""Starts that fail, are interrupted, or are for nobody any more: they end, and leave neither a process nor a folder."""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace._core import Scheduler
from headrace.contract.errors import EngineDead
from headrace.engine import local_socket, process, spawning, starting
from headrace.engine.engine import Engine
from headrace.engine.group import GroupClient
from headrace.engine.process import ProcessClient
from headrace.engine.process_pair import ProcessPair
from headrace.engine.remote import RemoteClient
from headrace.worker.fake import FakeWorker

DEADLINE_S = 30.0
FRONT = """
import sys
sys.path.insert(0, {here!r})
from test_starting import build
from headrace.engine.group import GroupClient
if __name__ == "__main__":
    GroupClient(build, ["blocks", "blocks"], votes=False, leftovers=[{folder!r}])
"""


class Interrupted(list[Callable[[Any], Any]]):
    """Ctrl-C comes while the second is being started."""

    def __iter__(self) -> Iterator[Callable[[Any], Any]]:
        yield self[0]
        raise KeyboardInterrupt


def test_an_interrupt_between_two_starts_ends_the_first() -> None:
    over = threading.Event()

    def start(flag: Any) -> Any:
        while not flag.is_set():
            time.sleep(0.001)
        over.set()
        raise EngineDead("not needed")

    with pytest.raises(KeyboardInterrupt):
        starting.start_together(Interrupted([start]))
    assert over.wait(DEADLINE_S)


def build(how: str) -> tuple[Engine, dict[str, Any]]:
    """``fine``, also where its process is ``slow to go``; or it fails, stops itself (as a debugger would), is killed,
    or takes for ever."""
    if how == "fails":
        raise EngineDead("no such model")
    if how == "stops":
        os.kill(os.getpid(), signal.SIGSTOP)
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "blocks":
        print(os.getpid(), flush=True)
        time.sleep(20 * DEADLINE_S)
    if how == "slow to go":
        atexit.register(time.sleep, 20 * DEADLINE_S)
    return Engine(Scheduler(num_blocks=9, block_size=4), FakeWorker()), {}


@pytest.fixture(autouse=True)
def nothing_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = set(multiprocessing.active_children())  # of a test that failed, perhaps
    monkeypatch.setattr(process, "GRACE_S", 0.1)
    with tempfile.TemporaryDirectory(prefix="hr") as place:
        monkeypatch.setattr(tempfile, "tempdir", place)
        yield
        assert not list(Path(place).iterdir())
    assert not set(multiprocessing.active_children()) - before


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("fails", r"^rank 0 of 2: the engine did not start: no such model"),
        ("killed", r"^rank 0 of 2: the engine process ended at start \(exit code -9\)$"),
    ],
)
def test_a_rank_that_stands_still_does_not_hold_up_the_end_of_a_failed_start(how: str, why: str) -> None:
    with pytest.raises(EngineDead, match=why):
        GroupClient(build, [how, "stops"], votes=False)


def make_folder_that_fails_at(number: int) -> Callable[[], tempfile.TemporaryDirectory[str]]:
    real, calls, lock = local_socket.make_folder, [0], threading.Lock()

    def make() -> tempfile.TemporaryDirectory[str]:
        with lock:
            calls[0] += 1
            if calls[0] == number:
                raise OSError(24, "Too many open files")
        return real()

    return make


def test_a_start_without_resources_ends_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spawning, "make_folder", make_folder_that_fails_at(2))
    with pytest.raises(
        EngineDead, match=r"^rank [01] of 2: the engine process cannot be started: .*Too many open files"
    ):
        GroupClient(build, ["fine", "fine"], votes=False)


def test_a_socket_is_closed_when_no_process_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []
    real = spawning.open_socket
    monkeypatch.setattr(spawning, "open_socket", lambda *a, **k: opened.append(real(*a, **k)) or opened[0])
    monkeypatch.setattr(
        spawning.multiprocessing, "get_context", lambda _: (_ for _ in ()).throw(OSError(12, "no memory"))
    )
    with pytest.raises(EngineDead, match="no memory"):
        ProcessClient(build, "fine")
    assert opened[0].closed


def test_an_interrupt_ends_a_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starting, "wait", lambda _: (_ for _ in ()).throw(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        GroupClient(build, ["stops", "stops"], votes=False)


def test_the_end_does_not_wait_for_libraries_to_be_taken_down() -> None:
    client = ProcessClient(build, "slow to go")
    client.close()
    assert client._process.exitcode == 0  # not killed


def test_an_interrupt_ends_the_start_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process.msgspec.msgpack, "Decoder", lambda _: (_ for _ in ()).throw(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        ProcessClient(build, "stops")


def test_whoever_needs_them_no_more_ends_the_wait() -> None:
    give_up = threading.Event()
    give_up.set()
    with pytest.raises(EngineDead, match="not needed any more"):
        GroupClient(build, ["stops", "stops"], votes=False, give_up=give_up)
    with pytest.raises(EngineDead, match="not needed any more"):
        ProcessPair(lambda _, flag, on_dead: RemoteClient("tcp://127.0.0.1:1", give_up=flag, on_dead=on_dead), give_up)


def test_a_front_that_is_killed_while_its_ranks_start_leaves_nothing(tmp_path: Path) -> None:
    meeting = Path(tempfile.mkdtemp())
    script = tmp_path / "front.py"
    script.write_text(FRONT.format(here=str(Path(__file__).parent), folder=str(meeting)))
    environment = {**os.environ, "TMPDIR": tempfile.gettempdir(), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, env=environment) as front:
        assert front.stdout is not None
        children = [int(front.stdout.readline()) for _ in range(2)]
        front.send_signal(signal.SIGKILL)
        front.wait(DEADLINE_S)
        deadline = time.monotonic() + DEADLINE_S
        while any(map(runs, children)):
            assert time.monotonic() < deadline
            time.sleep(0.05)


def runs(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False

"""The local socket of an engine in its own process: its path fits, and nothing of it stays behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from headrace._core import Scheduler
from headrace.contract.errors import EngineDead
from headrace.engine import local_socket
from headrace.engine.engine import Engine
from headrace.engine.process import ProcessClient
from headrace.worker.fake import FakeWorker

DEADLINE_S = 30.0
FRONT = """
import sys, time
sys.path.insert(0, {here!r})
from test_socket_folder import build
from headrace.engine.process import ProcessClient
if __name__ == "__main__":
    client = ProcessClient(build, 1)
    print(client.pid, flush=True)
    time.sleep(600)
"""


def build(answer: int) -> tuple[Engine, dict[str, int]]:
    return Engine(Scheduler(num_blocks=9, block_size=4), FakeWorker()), {"answer": answer}


@pytest.fixture
def long_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place for temporary files whose path leaves no room for a socket's."""
    place = tmp_path / ("x" * 100)
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


def test_a_long_place_for_temporary_files(long_place: Path) -> None:
    client = ProcessClient(build, 42)
    folder = Path(client._folder.name)
    assert client.info == {"answer": 42}
    assert long_place not in folder.parents
    assert folder.stat().st_mode & 0o077 == 0
    client.close()
    assert not folder.exists()


def test_no_place_at_all(long_place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_socket, "SHORT_PLACES", ())
    with pytest.raises(EngineDead, match=f"{long_place} is too long"):
        ProcessClient(build, 42)


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"  # ended; nobody has asked
    except OSError:
        return True


def test_a_child_whose_parent_was_killed_leaves_nothing() -> None:
    with tempfile.TemporaryDirectory(prefix="hr") as place:
        script = Path(place) / "front.py"
        script.write_text(FRONT.format(here=str(Path(__file__).parent)))
        scratch = Path(place) / "t"
        scratch.mkdir()
        environment = {**os.environ, "TMPDIR": str(scratch), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, env=environment) as front:
            assert front.stdout is not None
            child = int(front.stdout.readline())
            assert list(scratch.glob("headrace-*/engine"))
            front.send_signal(signal.SIGKILL)
            front.wait(DEADLINE_S)
            deadline = time.monotonic() + DEADLINE_S
            while not gone(child) and time.monotonic() < deadline:
                time.sleep(0.05)
            assert gone(child)
            assert not list(scratch.glob("headrace-*"))

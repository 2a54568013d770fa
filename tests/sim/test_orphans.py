"""A child whose parent is killed ends, whatever it is at, and clears away; signals to the group do not end it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from headrace.engine import orphans

CHILD = """
import os, sys, threading
from headrace.engine.orphans import TO_THE_GROUP, end_with, leave_signals_to_the_front
leave_signals_to_the_front()
for number in TO_THE_GROUP:
    os.kill(os.getpid(), number)
end_with(os.getppid(), [sys.argv[1]])
print(os.getpid(), flush=True)
threading.Event().wait()
"""
PARENT = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1], sys.argv[2]])"
INTERRUPTED = """
import multiprocessing, os, signal
from headrace.engine.orphans import born_deaf, leave_signals_to_the_front

if __name__ != "__main__":
    os.kill(os.getpid(), signal.SIGINT)  # while it is imported, before anything of the child's own runs


def child():
    leave_signals_to_the_front()
    print("lives", flush=True)


if __name__ == "__main__":
    with born_deaf():
        process = multiprocessing.get_context("spawn").Process(target=child)
        process.start()
    process.join()
    assert process.exitcode == 0
    try:
        os.kill(os.getpid(), signal.SIGINT)
    except KeyboardInterrupt:
        print("the front hears", flush=True)
"""
DEADLINE_S = 60.0


def test_a_child_that_never_looks_up_ends_with_its_parent(tmp_path: Path) -> None:
    folder = tmp_path / "left"
    folder.mkdir()
    command = [sys.executable, "-c", PARENT, CHILD, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": _source()}) as parent:
        assert parent.stdout is not None
        assert int(parent.stdout.readline()) != parent.pid
        parent.kill()
        rest, _ = parent.communicate(timeout=DEADLINE_S)  # the child holds the pipe until it ends
    assert rest == b""
    assert not folder.exists()


def test_a_child_that_is_interrupted_before_its_first_line_goes_on(tmp_path: Path) -> None:
    script = tmp_path / "interrupted.py"
    script.write_text(INTERRUPTED)
    environment = {**os.environ, "PYTHONPATH": _source()}
    found = subprocess.run([sys.executable, script], capture_output=True, env=environment, timeout=DEADLINE_S)
    assert (found.stdout, found.stderr) == (b"lives\nthe front hears\n", b"")


def _source() -> str:
    return str(Path(orphans.__file__).parents[2])

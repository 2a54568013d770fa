"""The runner of ``make test``: a failure is repeated once, named whatever comes of it, and never forgotten."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

RUNNER = Path(__file__).resolve().parents[2] / "scripts" / "steady_tests.py"
ONCE = """
from pathlib import Path
def test_first_time_only():
    mark = Path(__file__).with_suffix(".mark")
    seen = mark.exists()
    mark.touch()
    assert seen
def test_fine():
    with Path(__file__).with_suffix(".runs").open("a") as runs:
        runs.write("x")
"""
ALWAYS = "def test_always():\n    assert False\n"
MANY = "import pytest\n@pytest.mark.parametrize('i', range(11))\ndef test_it(i):\n    assert False\n"


def run(folder: Path, **files: str) -> tuple[int, list[str]]:
    """Exit status and lines of the runner over these test files."""
    (folder / "pytest.ini").write_text("[pytest]\n")
    for name, text in files.items():
        (folder / f"test_{name}.py").write_text(text)
    command = [sys.executable, str(RUNNER), "-q"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout.splitlines()


def test_what_passes_the_second_time_is_named_and_the_rest_is_not_run_again(tmp_path: Path) -> None:
    status, lines = run(tmp_path, once=ONCE)
    assert (status, lines[-1]) == (0, "unsteady: test_once.py::test_first_time_only")
    assert (tmp_path / "test_once.runs").read_text() == "x"


def test_what_fails_twice_fails_beside_what_does_not(tmp_path: Path) -> None:
    status, lines = run(tmp_path, once=ONCE, always=ALWAYS)
    assert status == 1
    assert lines[-2:] == ["failed twice: test_always.py::test_always", "unsteady: test_once.py::test_first_time_only"]


@pytest.mark.parametrize(("text", "status"), [(MANY, 1), ("import nothing_of_the_kind\n", 2)])
def test_what_is_broken_is_not_tried_again(tmp_path: Path, text: str, status: int) -> None:
    ended, lines = run(tmp_path, broken=text)
    assert ended == status
    assert not any("once more" in line for line in lines)

"""Ctrl-C while a command starts: whatever is being imported, the program ends at once, in silence, with code 130."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cli_models import start

from headrace.cli.interrupts import leaving_at_once

INTERRUPTING = "import os, signal\nos.kill(os.getpid(), signal.SIG{name})\nraise RuntimeError('it went on')\n"


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("typer", ["run", "x"]),  # the command line itself
        ("torch", ["run", "x", "-m", "v41-mini"]),
        ("torch", ["serve", "-m", "v41-mini"]),
        ("torch", ["bench", "latency"]),
        ("torch", ["golden", "check"]),
        ("torch", ["embed", "x"]),
    ],
)
def test_an_interrupt_in_an_import_ends_the_program(module: str, arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / f"{module}.py").write_text(INTERRUPTING.format(name="INT"))
    assert ended(tmp_path, arguments) == (130, b"", b"")


def test_so_does_a_polite_end(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(INTERRUPTING.format(name="TERM"))
    assert ended(tmp_path, ["run", "x", "-m", "v41-mini"]) == (143, b"", b"")


def ended(first: Path, arguments: list[str]) -> tuple[int, bytes, bytes]:
    """Exit code, stdout and stderr; modules are looked for in ``first``, first."""
    code = f"import sys; sys.path.insert(0, {str(first)!r}); from headrace.__main__ import main; main()"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2] / "src")}
    found = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, env=environment, timeout=60)
    return found.returncode, found.stdout, found.stderr


def test_python_m_headrace_is_the_same_program() -> None:
    process = start("--version")
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out[:9]) == (0, b"headrace ")


def test_who_listens_already_goes_on_listening() -> None:
    """Afterwards handlers are what they were, and another's is left alone."""
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with leaving_at_once():
        assert signal.getsignal(signal.SIGINT) is not before[0]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    heard: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _frame: heard.append(number))
    try:
        with leaving_at_once():
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before[0])
    assert heard == [signal.SIGINT]

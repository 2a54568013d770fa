"""A ``headrace serve`` of one's own for the scripts beside this file: starts it, knows its address, ends it.

Measures nothing and checks nothing. Not a program: the scripts import it.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

STOP_S = 120.0


@dataclass
class LocalServer:
    """``url`` has no route and no slash at its end. ``exit_code`` is known once the ``with`` is over."""

    url: str
    pid: int
    exit_code: int | None = None

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])


@contextmanager
def local_server(options: Sequence[str]) -> Iterator[LocalServer]:
    """Runs one with these options on a free port for the length of a ``with``; then asks it to drain and waits.

    Raises SystemExit when it does not start, TimeoutExpired when it does not end.
    """
    command = [sys.executable, "-m", "headrace", "serve", "--port", "0", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        server = LocalServer(_address(process), process.pid)
        yield server
    finally:
        process.terminate()
        code = process.wait(STOP_S)
    server.exit_code = code


def _address(process: subprocess.Popen[str]) -> str:
    """From the line that says it; what else the server says is read and dropped, or its pipe would fill."""
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        if " on http" in line:
            threading.Thread(target=process.stderr.read, daemon=True).start()
            return line.rsplit(" ", 1)[1].strip()
        said.append(line)
    raise SystemExit(f"the server did not start: {''.join(said)[-1000:]}")

"""A runner as a child process: asked in JSON lines, each answer awaited until a deadline, stopped while others run.

A stopped process cannot spin beside the one that is measured. Whatever a runner does wrong is a PeerError.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

from headrace.contract.errors import HeadraceError

SERVE = Path(__file__).parent / "peers" / "serve.py"
CLOSE_DEADLINE_S = 10.0


class PeerError(HeadraceError):
    """A runner failed, was too slow, or cannot do what was asked."""


class PeerProcess:
    """``log`` gets all that the engine prints. The child has a process group of its own, ended by ``close``."""

    def __init__(self, python: Path, runner: str, log: Path, variables: Mapping[str, str] | None = None) -> None:
        settings = [f"{name}={value}" for name, value in (variables or {}).items()]
        command = ["env", *settings, str(python), "-u", str(SERVE), runner]
        self.started = monotonic()
        self.name = runner
        self.peak_rss_bytes = 0
        self._log = log
        self._pending = b""
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, start_new_session=True
            )

    def ask(self, do: str, deadline_s: float, **arguments: Any) -> dict[str, Any]:
        """The answer to one request. Raises PeerError with the reason."""
        assert self._process.stdin is not None
        line = json.dumps({"do": do, **arguments}) + "\n"
        try:
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()
        except (OSError, ValueError):  # the child has gone, or was closed here
            raise PeerError(self._ended()) from None
        answer: dict[str, Any] = json.loads(self._read_line(deadline_s, do))
        self.peak_rss_bytes = answer.pop("peak_rss_bytes", 0)
        if "error" in answer:
            raise PeerError(answer["error"])
        return answer

    def _read_line(self, deadline_s: float, do: str) -> bytes:
        assert self._process.stdout is not None
        until = monotonic() + deadline_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._pending:
                left = until - monotonic()
                if left <= 0 or not selector.select(left):
                    self.close()
                    raise PeerError(f"{do} took more than {deadline_s:.0f} s")
                chunk = os.read(self._process.stdout.fileno(), 1 << 16)
                if not chunk:
                    raise PeerError(self._ended())
                self._pending += chunk
        line, _, self._pending = self._pending.partition(b"\n")
        return line

    def _ended(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(CLOSE_DEADLINE_S)
        lines = self._log.read_text("utf-8", "replace").strip().splitlines()
        return f"the process ended ({self._process.returncode}): {lines[-1][:300] if lines else 'it said nothing'}"

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        """Ends the child's whole group. May be called twice."""
        self.resume()
        self._signal(signal.SIGTERM)
        try:
            self._process.wait(CLOSE_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()

    def _signal(self, number: signal.Signals) -> None:
        if self.alive:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

"""Stopping cleanly: a signal asks, the loop looks.

A KeyboardInterrupt in the middle of a step would leave scheduler and worker at odds; so while requests run, the
first Ctrl-C (or SIGTERM) only sets a flag, and the loop ends between two steps. A second Ctrl-C does not wait.
While modules are imported nothing is open yet, and the program just ends. Must itself import next to nothing.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


def signals_to_heed() -> list[signal.Signals]:
    """What asks a program to stop. A hang-up that whoever started us wants ignored (nohup) stays so."""
    hang_up = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
    return [signal.SIGINT, signal.SIGTERM, *hang_up]


class Interrupts:
    """``with Interrupts() as interrupts``: ``interrupts.asked`` says whether to stop. Main thread only, else inert."""

    def __init__(self) -> None:
        self.signum: int | None = None
        self._previous: dict[int, Any] = {}

    @property
    def asked(self) -> bool:
        return self.signum is not None

    @property
    def exit_code(self) -> int:
        """What a shell expects of a process that a signal ended: 130 for Ctrl-C, 143 for SIGTERM."""
        return 128 + (self.signum or 0)

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._ask) for number in signals_to_heed()}
        return self

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _ask(self, signum: int, _frame: FrameType | None) -> None:
        if self.asked and signum == signal.SIGINT:
            raise KeyboardInterrupt
        self.signum = signum


class Terminated(SystemExit):
    """SIGTERM or SIGHUP came outside of ``Interrupts``."""


def end_in_order_when_asked() -> None:
    """From now on SIGTERM, and SIGHUP unless it is ignored, unwinds the main thread: engines in other processes are
    ended and their folders removed, which the system's way would leave. A second one is the system's."""

    def unwind(signum: int, _frame: FrameType | None) -> None:
        signal.signal(signum, signal.SIG_DFL)
        raise Terminated(128 + signum)

    for number in signals_to_heed()[1:]:
        signal.signal(number, unwind)


@contextmanager
def leaving_at_once() -> Iterator[None]:
    """For imports, before anything is open: whoever asks to stop is obeyed on the spot, with the shell's exit code and
    without a word. An exception would show where the imports had come to, and those of torch swallow it, turn it into
    another one or end in ``std::terminate``. Nothing at all where somebody else listens to Ctrl-C."""
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield
        return
    previous = {number: signal.signal(number, _leave) for number in signals_to_heed()}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _leave(signum: int, _frame: FrameType | None) -> None:
    os._exit(128 + signum)


def import_engine() -> None:
    """Torch, and all that is built on it: seconds on a cold machine. Before anything is opened or shown."""
    with leaving_at_once():
        import headrace.api.llm  # noqa: F401

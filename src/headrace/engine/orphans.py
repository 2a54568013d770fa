"""How a child ends. When its front is gone: at once, and it takes along the folders that nobody else is left to remove.
When told to: without delay. Every process that this package starts looks this way, and no other; signals to a
terminal's whole group are the front's to answer."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import resource_tracker
from typing import NoReturn

PERIOD_S = 0.5
TO_THE_GROUP = (signal.SIGINT, signal.SIGHUP)  # Ctrl-C, and a terminal that is closed


@contextmanager
def born_deaf() -> Iterator[None]:
    """For the front, around the start of a child: signals to the whole group wait there until the child has called
    ``leave_signals_to_the_front``. Before it can, it imports for seconds, and Ctrl-C would show where it was."""
    resource_tracker.ensure_running()  # its start, otherwise done in here, lets Ctrl-C through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, TO_THE_GROUP)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_signals_to_the_front() -> None:
    """For the child, first of all: signals that reach the whole group do not end it; the front decides what ends."""
    for number in TO_THE_GROUP:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, TO_THE_GROUP)


def leave() -> NoReturn:
    """For the child, last of all, once everything is closed: to take a numerical library down costs seconds on a busy
    machine, for which whoever ended it would wait."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)


def remove_if_orphaned(folders: Sequence[str], parent: int) -> None:
    """For the child, at its end: a parent that was killed cannot remove its folders any more."""
    if os.getppid() != parent:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


def end_with(parent: int, folders: Sequence[str] = (), over: threading.Event | None = None) -> None:
    """From now on the death of ``parent`` ends this process, whatever it does, until ``over`` is set: its work would be
    for nobody."""
    until = over or threading.Event()

    def watch() -> None:
        while not until.wait(PERIOD_S):
            if os.getppid() != parent:
                remove_if_orphaned(folders, parent)
                os._exit(1)

    threading.Thread(target=watch, name="headrace-orphan", daemon=True).start()


@contextmanager
def watching(folders: Sequence[str], parent: int) -> Iterator[None]:
    """``end_with``, inside."""
    over = threading.Event()
    end_with(parent, folders, over)
    try:
        yield
    finally:
        over.set()

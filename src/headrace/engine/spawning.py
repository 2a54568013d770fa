"""Starting a process beside the front, with a socket between the two that nobody else may use.

The child's main function gets what it is to build, where to connect, and whose end is its own. Waits for nothing: the
caller hears from the child, or gives it up.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from typing import Any

import zmq

from .local_socket import address_in, make_folder, open_socket
from .orphans import born_deaf


@dataclass(frozen=True, slots=True)
class Spawned:
    """``folder`` holds the socket's file and goes with the front."""

    folder: tempfile.TemporaryDirectory[str]
    socket: zmq.Socket[bytes]
    process: BaseProcess


def spawn(main: Callable[..., None], name: str, build: Any, argument: Any, *more: Any) -> Spawned:
    """Runs ``main(build, argument, address, pid of the front, *more)`` in a new process.

    All or nothing: a socket that stays open would keep the program from ending. Raises OSError, ZMQError, or EngineDead
    where there is no place for a socket.
    """
    with contextlib.ExitStack() as undo:
        folder = make_folder()
        undo.callback(folder.cleanup)
        address = address_in(folder.name)
        socket = undo.enter_context(open_socket(address, bind=True))
        arguments = (build, argument, address, os.getpid(), *more)
        context = multiprocessing.get_context("spawn")
        process = context.Process(target=main, args=arguments, name=name, daemon=True)
        with born_deaf():
            process.start()
        undo.pop_all()
    return Spawned(folder, socket, process)

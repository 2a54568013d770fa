"""The socket between a front and the engine's process: where its file lies, and that it goes with whoever is last.

Its folder belongs to one user alone; nobody else may speak to the engine.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import zmq

from headrace.contract.errors import EngineDead

PREFIX, SOCKET = "headrace-", "engine"  # folder and file
SHORT_PLACES = ("/tmp", "/var/tmp", "/dev/shm")  # for the folder, where the usual place has too long a path
MAX_BACKLOG = 100_000  # messages a side may be behind before it counts as stuck


def open_socket(address: str, *, bind: bool) -> zmq.Socket[bytes]:
    """One end of the connection; the front binds, the child connects."""
    context: zmq.Context[Any] = zmq.Context.instance()
    socket: zmq.Socket[bytes] = context.socket(zmq.PAIR)
    try:
        socket.set_hwm(MAX_BACKLOG)
        socket.linger = 1000
        (socket.bind if bind else socket.connect)(address)
    except BaseException:
        socket.close()  # else the end of the program would wait for it
        raise
    return socket


def make_folder() -> tempfile.TemporaryDirectory[str]:
    """A folder with a path short enough for a socket in it. Raises EngineDead when there is no place for one.

    The system cuts a socket's path at about a hundred bytes, and a user's place for temporary files may be longer.
    """
    for place in (tempfile.gettempdir(), *SHORT_PLACES):
        longest = os.path.join(place, PREFIX + "x" * 8, SOCKET)  # eight: what tempfile adds
        if len(os.fsencode(longest)) <= zmq.IPC_PATH_MAX_LEN and os.access(place, os.W_OK | os.X_OK):
            return tempfile.TemporaryDirectory(prefix=PREFIX, dir=place)
    raise EngineDead(f"no place for a local socket: {tempfile.gettempdir()} is too long a path; set TMPDIR to another")


def address_in(folder: str) -> str:
    return f"ipc://{Path(folder) / SOCKET}"


def folder_of(address: str) -> str:
    """Where the socket's file lies."""
    return str(Path(address.removeprefix("ipc://")).parent)

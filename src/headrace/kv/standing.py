"""Whether somebody listens on an ``ipc://`` address already. Asks the socket; changes and removes nothing.

ZeroMQ takes such an address over without a word: the first server would go on for nobody, and the file would go with
the second.
"""

from __future__ import annotations

import socket

from headrace.contract.errors import StoreError

IPC = "ipc://"
ANSWER_S = 2.0  # of a listener on this machine


def refuse_taken(listen: str) -> None:
    """Raises StoreError while somebody takes connections there. What a killed server left behind is no one's."""
    if not listen.startswith(IPC):
        return
    path = listen.removeprefix(IPC)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(ANSWER_S)
        try:
            asking.connect("\0" + path[1:] if path.startswith("@") else path)
        except (FileNotFoundError, ConnectionRefusedError):
            return
        except OSError as error:
            raise StoreError(listen, f"cannot be listened on: {error.strerror or error}") from error
    raise StoreError(listen, "cannot be listened on: another server answers there")

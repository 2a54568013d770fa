"""Bell: wakes a thread that waits in a ZeroMQ poller, from any other thread."""

from __future__ import annotations

import contextlib
import socket


class Bell:
    """Register ``fd`` for reading; a ring wakes the poller, ``hush`` makes it sleep again. Many rings are one."""

    def __init__(self) -> None:
        self._heard, self._rung = socket.socketpair()
        self._heard.setblocking(False)
        self._rung.setblocking(False)

    @property
    def fd(self) -> int:
        return self._heard.fileno()

    def ring(self) -> None:
        with contextlib.suppress(OSError):  # full: it rings already; closed: nobody waits
            self._rung.send(b"\0")

    def hush(self) -> None:
        with contextlib.suppress(OSError):
            while len(self._heard.recv(4096)) == 4096:
                pass

    def close(self) -> None:
        self._heard.close()
        self._rung.close()

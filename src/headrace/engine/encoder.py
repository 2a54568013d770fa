"""Encoder: rows of pictures, kept by content, from a process that is replaced when it dies.

A picture at a time, so that the one that killed the process is known: it is tried once more, then its request ends.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable

from headrace.contract.errors import EngineDead, WorkerError
from headrace.contract.picture import Picture

from .encoder_process import EncoderProcess
from .starting import Flag

log = logging.getLogger(__name__)

ATTEMPTS = 2
MOST_KEPT_BYTES = 256 << 20

Start = Callable[[Flag], EncoderProcess]


class KeptRows:
    """Rows by what their picture is known by; those not asked for longest go first. Thread-safe."""

    def __init__(self, most_bytes: int = MOST_KEPT_BYTES) -> None:
        self._most_bytes, self._bytes = most_bytes, 0
        self._lock = threading.Lock()
        self._rows: OrderedDict[str, bytes] = OrderedDict()

    def find(self, name: str) -> bytes | None:
        with self._lock:
            if name in self._rows:
                self._rows.move_to_end(name)
            return self._rows.get(name)

    def keep(self, name: str, rows: bytes) -> None:
        with self._lock:
            self._bytes += len(rows) - len(self._rows.pop(name, b""))
            self._rows[name] = rows
            while self._bytes > self._most_bytes and len(self._rows) > 1:
                self._bytes -= len(self._rows.popitem(last=False)[1])


class Encoder:
    """``start`` starts a process; called at once, with ``give_up``, and whenever one has died. Raises EngineDead.

    ``rows``, ``revive`` and ``close`` belong to one thread; ``kept`` and ``stop`` may be asked by any.
    """

    def __init__(
        self, start: Start, timeout_s: float, give_up: Flag | None = None, kept: KeptRows | None = None
    ) -> None:
        """``timeout_s``: for one picture; a process that takes longer is killed."""
        self._start, self._timeout_s = start, timeout_s
        self._stopping = threading.Event()
        self._tell_failure = True
        self.kept = kept or KeptRows()
        try:
            self._process = start(give_up or self._stopping)
        except EngineDead as error:
            raise type(error)(f"the encoder did not start: {error}") from error

    @property
    def pid(self) -> int | None:
        """The process there is now, or was until a moment ago."""
        return self._process.pid

    def rows(self, picture: Picture) -> bytes:
        """Waits for them. Raises WorkerError with the reason."""
        if (found := self.kept.find(picture.id)) is not None:
            return found
        rows = self._encoded(picture)
        self.kept.keep(picture.id, rows)
        return rows

    def _encoded(self, picture: Picture) -> bytes:
        why = ""
        for _ in range(ATTEMPTS):
            try:
                return self._living().rows(picture, self._timeout_s)
            except EngineDead as error:
                why = str(error)
                log.error("the encoder: %s", why)
            except TimeoutError as error:
                raise WorkerError(f"the encoder: {error}; another one is being started") from error
            if self._stopping.is_set():
                break
        raise WorkerError(f"the encoder: {why}; tried {ATTEMPTS} times")

    def _living(self) -> EncoderProcess:
        if not self._process.alive:
            self._process.close()
            self._process = self._start(self._stopping)
            self._tell_failure = True
            log.warning("the encoder is back")
        if self._stopping.is_set():  # asked last: from here on ``stop`` finds the new one
            raise EngineDead("the client was closed")
        return self._process

    def revive(self) -> None:
        """For idle moments: another process in place of one that died, so that no request need wait for it."""
        if self._process.alive or not self._tell_failure or self._stopping.is_set():
            return
        try:
            log.error("the encoder's process is gone; starting another")
            self._living()
        except Exception as error:
            self._tell_failure = False  # from now on it is tried when a picture comes
            log.error("the encoder did not start again: %s", error)

    def stop(self) -> None:
        """Nobody waits for rows any more: whoever does is told at once."""
        self._stopping.set()
        self._process.kill()

    def close(self) -> None:
        self._process.close()

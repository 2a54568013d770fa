"""EngineLoop: the thread that ticks an engine, and what happens when the engine dies.

Every accepted request gets a last delta: its own end, ``abort`` at close, or ``error`` when the loop itself fails.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from headrace.contract.errors import GroupBroken, HeadraceError
from headrace.contract.result import TokenDelta

from .engine import Engine

IDLE_WAIT_S = 0.5  # an arrival wakes the loop at once; this only bounds how long a lost wake-up could matter
LEAVING_S = 1.0  # between the first and the last rank of a group that hear of its end
BLOCKED_WAIT_S = 0.002  # sequences live but none can run (a grammar compiles, KV loads)

Sink = Callable[[list[TokenDelta]], None]

log = logging.getLogger(__name__)


def _told(failure: BaseException) -> str:
    """Why the engine is gone, for those whose requests it held."""
    reason = str(failure) if isinstance(failure, HeadraceError) else f"{type(failure).__name__}: {failure}"
    return f"the engine was closed: {reason}"


class EngineLoop:
    """Runs ``engine.tick`` until closed. ``sink`` gets the deltas, on this thread; it must not block."""

    def __init__(self, engine: Engine, sink: Sink) -> None:
        self._engine = engine
        self._sink = sink
        self._closing = threading.Event()
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="headrace-engine", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def why(self) -> str | None:
        """What ended it, if nobody has closed it."""
        return None if self.failure is None else _told(self.failure)

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                deltas = self._engine.tick()
                if deltas:
                    self._sink(deltas)
                elif self._engine.idle:
                    self._engine.intake.wait(IDLE_WAIT_S)
                elif self._engine.resting:
                    self._engine.intake.wait(BLOCKED_WAIT_S)
        except GroupBroken as error:
            if not self._closing.wait(LEAVING_S):  # another rank was told to close before this one
                self.failure = error
                log.error("the engine loop ends: %s", error)
        except BaseException as error:
            self.failure = error
            log.exception("the engine loop failed")
        self._end()

    def _end(self) -> None:
        """Callers are told first: closing may take long, or fail."""
        how = ("abort",) if self.failure is None else ("error", _told(self.failure))
        for part in (self._engine.end, self._engine.close):
            try:
                if deltas := part(*how):
                    self._sink(deltas)
            except Exception:
                log.exception("closing the engine failed")

    def close(self, timeout_s: float = 30.0) -> None:
        """Ends all requests and the thread; gives up waiting at the deadline."""
        self._closing.set()
        self._engine.intake.close()
        self._thread.join(timeout_s)

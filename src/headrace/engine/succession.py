"""Succession: the counts of engines that take one another's place. They never fall; gauges are the newest one's alone.

Whoever scrapes counters takes a fall for a new start at nothing, and the rest for what happened since.
"""

from __future__ import annotations

import threading
from typing import Protocol

from headrace.contract.stats import EngineStats, counts_only, total_stats


class HasStats(Protocol):
    """An engine's client; its stats are empty once it is dead."""

    @property
    def stats(self) -> EngineStats: ...


class Succession:
    """Asked with the engine that is there now. Thread-safe. What a dead engine did after it was last asked is lost."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._engine: HasStats | None = None
        self._before = EngineStats()
        self._last = EngineStats()

    def stats(self, engine: HasStats) -> EngineStats:
        """Of ``engine``, with the counts of all before it."""
        with self._lock:
            if engine is not self._engine:
                self._before = total_stats([counts_only(self._last), self._before])
                self._engine, self._last = engine, EngineStats()
            now = engine.stats
            if now.steps < self._last.steps:  # it is dead
                now = counts_only(self._last)
            self._last = now
            return total_stats([now, self._before])

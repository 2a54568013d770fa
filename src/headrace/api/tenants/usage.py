"""UsageBook: what each tenant used, by day, in SQLite. It survives a restart; a crash loses what was not flushed.

Counts only, never content. Counting is in memory and cheap; ``flush`` does the writing, on any thread. A server uses
``write`` and ``read``: the book's own thread waits for a database that others hold, and nobody else does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sqlite3
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Any

from headrace.contract.errors import ConfigError

COUNTS = ("requests", "prompt_tokens", "cached_tokens", "generation_tokens")
CREATE = """CREATE TABLE IF NOT EXISTS usage (
  tenant TEXT NOT NULL, day TEXT NOT NULL, requests INTEGER NOT NULL, prompt_tokens INTEGER NOT NULL,
  cached_tokens INTEGER NOT NULL, generation_tokens INTEGER NOT NULL, PRIMARY KEY (tenant, day))"""
ADD = f"""INSERT INTO usage (tenant, day, {", ".join(COUNTS)}) VALUES (?, ?, ?, ?, ?, ?)
  ON CONFLICT (tenant, day) DO UPDATE SET {", ".join(f"{name} = {name} + excluded.{name}" for name in COUNTS)}"""

BUSY_S = 5.0  # for another program that holds the database
Totals = dict[str, dict[str, Any]]

log = logging.getLogger("headrace.serve")


def utc_day() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d")


def _make_private(path: Path) -> None:
    """Made before SQLite would, for its owner only; the files beside it get the same mode. What goes wrong SQLite says
    better."""
    with contextlib.suppress(OSError):
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_EXCL, 0o600))


class UsageBook:
    """``path`` None keeps the counts in memory only. ``day`` names the current day."""

    def __init__(self, path: Path | None, day: Callable[[], str] = utc_day) -> None:
        self._day = day
        self._pending: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0] * len(COUNTS))
        self._counting = Lock()
        self._writing = Lock()
        self._thread = ThreadPoolExecutor(1, "usage")
        self._reading: Future[Totals] | None = None
        if path is not None:
            _make_private(path)
        try:
            self._db = sqlite3.connect(":memory:" if path is None else path, timeout=BUSY_S, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute(CREATE)
            self._db.commit()
            self._db.execute(ADD, ("", "", *[0] * len(COUNTS)))  # another program's table, or one to read only?
            self._db.rollback()
        except sqlite3.Error as error:
            raise ConfigError("usage_db", f"{path}: {error}") from error

    def add(self, tenant: str, **counts: int) -> None:
        """Counts up the named columns of today. An unknown name is a ValueError."""
        with self._counting:
            row = self._pending[tenant, self._day()]
            for name, amount in counts.items():
                row[COUNTS.index(name)] += amount

    def flush(self) -> None:
        """Writes what was counted since the last time, all or nothing. Raises sqlite3.Error; then nothing is lost."""
        with self._writing:
            with self._counting:
                rows, self._pending = dict(self._pending), defaultdict(lambda: [0] * len(COUNTS))
            try:
                with self._db:
                    self._db.executemany(ADD, [(*key, *row) for key, row in rows.items()])
            except sqlite3.Error:
                with self._counting:
                    for key, row in rows.items():
                        self._pending[key] = [a + b for a, b in zip(self._pending[key], row)]
                raise

    def totals(self) -> Totals:
        """Sums over all days, by tenant, with the first of these days as ``since``; flushes first."""
        self.flush()
        sums = ", ".join(f"SUM({name})" for name in COUNTS)
        with self._writing:
            rows = self._db.execute(f"SELECT tenant, MIN(day), {sums} FROM usage GROUP BY tenant").fetchall()
        return {tenant: {"since": day, **dict(zip(COUNTS, row))} for tenant, day, *row in rows}

    async def write(self) -> None:
        """``flush`` on the book's own thread."""
        await asyncio.wrap_future(self._thread.submit(self.flush))

    async def read(self) -> Totals:
        """``totals`` on the book's own thread; those who ask at the same time get one answer."""
        if self._reading is None or self._reading.done():
            self._reading = self._thread.submit(self.totals)
        return await asyncio.shield(asyncio.wrap_future(self._reading))

    def close(self) -> None:
        """What cannot be written now is lost, and said to be."""
        self._thread.shutdown(cancel_futures=True)
        try:
            self.flush()
        except sqlite3.Error as error:
            log.error("the last usage could not be written: %s", error)
        with self._writing:
            self._db.close()

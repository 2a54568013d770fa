"""What a store has done and suffered since it was opened. Plain numbers; races between threads may lose one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counts:
    """What has happened since the store was opened. ``damaged``: values that failed their checks and were dropped."""

    hits: int = 0
    misses: int = 0
    puts: int = 0
    failed_puts: int = 0
    failed_reads: int = 0
    damaged: int = 0
    evicted: int = 0
    recovered: int = 0

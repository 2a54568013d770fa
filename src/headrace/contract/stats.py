"""EngineStats: what an engine says of itself between requests (engine → api). Numbers only, never content."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot after a turn of the loop. Gauges are of this moment, counts run from the engine's start.

    ``prefix_queries`` and ``prefix_hits`` count tokens. ``graph_steps`` counts steps by the mode they ran in.
    ``votes`` counts a voted group's decisions by what came of them, ``vote_wait_s`` is the time spent on them.
    """

    running: int = 0
    waiting: int = 0
    num_blocks: int = 0
    used_blocks: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    preemptions: int = 0
    steps: int = 0
    failed_steps: int = 0
    scheduled_tokens: int = 0
    decode_tokens: int = 0
    sampled_tokens: int = 0
    token_budget_left: int = 0
    graph_steps: dict[str, int] = {}
    votes: dict[str, int] = {}
    vote_wait_s: float = 0.0


def total_stats(parts: Sequence[EngineStats]) -> EngineStats:
    """The sum over the engines of a group; of what is counted by kind, kind by kind."""
    numbers: dict[str, Any] = {name: sum(getattr(part, name) for part in parts) for name in _NUMBERS}
    kinds: dict[str, Any] = {name: _added([getattr(part, name) for part in parts]) for name in _KINDS}
    return EngineStats(**numbers, **kinds)


def _added(tables: Sequence[dict[str, int]]) -> dict[str, int]:
    names = dict.fromkeys(name for table in tables for name in table)
    return {name: sum(table.get(name, 0) for table in tables) for name in names}


_KINDS = tuple(f.name for f in msgspec.structs.fields(EngineStats) if isinstance(f.default_factory, type))
_NUMBERS = tuple(name for name in EngineStats.__struct_fields__ if name not in _KINDS)

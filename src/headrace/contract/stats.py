"""EngineStats: what an engine says of itself between requests (engine → api). Numbers only, never content."""

from __future__ import annotations

import msgspec


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot after a turn of the loop. Gauges are of this moment, counts run from the engine's start.

    ``prefix_queries`` and ``prefix_hits`` count tokens. ``graph_steps`` counts steps by the mode they ran in,
    ``kv_store`` what happened between the engine and its store, by name (all counts).
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
    kv_store: dict[str, int] = {}

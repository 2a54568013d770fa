"""EngineStats: what an engine says of itself between requests (engine → api). Numbers only, never content."""

from __future__ import annotations

import msgspec


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot after a turn of the loop. Gauges are of this moment, counts run from the engine's start.

    ``prefix_queries`` and ``prefix_hits`` count tokens. ``graph_steps`` counts steps by the mode they ran in.
    ``attended`` counts pairs of a computed token and a position it may look at. ``busy_s``: seconds with a step under
    way. ``prefill_steps``, ``mixed_steps``: steps of prompts only, and of prompts and decoding together.
    """

    running: int = 0
    waiting: int = 0
    num_blocks: int = 0
    used_blocks: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    preemptions: int = 0
    steps: int = 0
    prefill_steps: int = 0
    mixed_steps: int = 0
    failed_steps: int = 0
    scheduled_tokens: int = 0
    decode_tokens: int = 0
    sampled_tokens: int = 0
    attended: int = 0
    busy_s: float = 0.0
    token_budget_left: int = 0
    graph_steps: dict[str, int] = {}


class StepCost(msgspec.Struct, frozen=True, kw_only=True):
    """Floating-point operations of a forward pass, a multiply-add counting two: per token computed, per pair that
    ``attended`` counts (windows left out: an upper bound there), per token drawn."""

    token: int
    attended: int
    sampled: int

    def of(self, stats: EngineStats) -> int:
        """Operations since the engine's start."""
        return (
            stats.scheduled_tokens * self.token + stats.attended * self.attended + stats.sampled_tokens * self.sampled
        )

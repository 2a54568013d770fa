"""EngineStats: what an engine says of itself between requests (engine → api). Numbers only, never content."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import msgspec


class OverlapStats(msgspec.Struct, frozen=True, kw_only=True):
    """The device's time and the loop's, ns since the start. ``bubble_counts``: steps by the bubble they had, one per
    bucket of ``obs.metrics.BUBBLE_SECONDS`` and the last for all above; ``busy_counts``: by the time they took the
    device, of ``SECONDS`` there."""

    busy_ns: int = 0
    bubble_ns: int = 0
    host_ns: int = 0
    last_bubble_ns: int = 0
    bubble_counts: list[int] = []
    busy_counts: list[int] = []

    @property
    def overlap_ratio(self) -> float:
        """Share of the loop's own work hidden behind the device's, 0 to 1; 0 before the first step."""
        return max(0.0, 1.0 - self.bubble_ns / self.host_ns) if self.host_ns else 0.0


class ExpertLoad(msgspec.Struct, frozen=True, kw_only=True):
    """Experts spread over ranks, since the start: ``rows`` that this rank's experts computed, whoever's they were,
    ``moves`` of experts that came from other ranks. ``balance``: slowest over mean rank of the latest steps measured;
    1 is perfect, 0 not known."""

    rows: int = 0
    moves: int = 0
    balance: float = 0.0


class StepGlance(msgspec.Struct, frozen=True, kw_only=True):
    """One of the last steps. ``kind``: prefill, decode, mixed or company. ``budget_left``, ``free_blocks`` and
    ``waiting`` are of when it had been planned. ``ms`` None: still under way, or its time is not known."""

    step: int
    kind: str
    sequences: int
    tokens: int
    budget_left: int
    free_blocks: int
    waiting: int
    ms: float | None = None

    def took(self, ms: float) -> StepGlance:
        """The same, over."""
        return msgspec.structs.replace(self, ms=ms)


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot after a turn of the loop. Gauges are of this moment, counts run from the engine's start.

    ``prefix_queries`` and ``prefix_hits`` count tokens. ``graph_steps`` counts steps by the mode they ran in,
    ``kv_store`` what happened between the engine and its store, by name (all counts).
    ``accepted_drafts`` counts drafts that were emitted, ``accepted_at`` by their place among a sequence's, and
    ``drafted_sequences`` the sequences of steps that had any; ``speculating`` is false where speculation is off or
    paused.
    ``votes`` counts a voted group's decisions by what came of them, ``vote_wait_s`` is the time spent on them.
    ``attended`` counts pairs of a computed token and a position it may look at. ``prefill_steps``, ``mixed_steps``:
    steps of prompts only, and of prompts and decoding together; ``company_steps``: with nothing in them, because other
    ranks ran one. ``budget_tokens``: what the steps had room for. ``size_counts``: steps by the tokens they were
    launched with, one per bucket of ``obs.metrics.STEP_TOKENS`` and the last for all above; ``size_tokens``: their sum.
    ``last_steps``: a few, oldest first; of a group, the first rank's.
    ``gone_tokens``, ``dropped_tokens``: computed for sequences that had ended, or given way, before the result came.
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
    company_steps: int = 0
    size_tokens: int = 0
    size_counts: list[int] = []
    last_steps: list[StepGlance] = []
    budget_tokens: int = 0
    gone_tokens: int = 0
    dropped_tokens: int = 0
    failed_steps: int = 0
    scheduled_tokens: int = 0
    decode_tokens: int = 0
    sampled_tokens: int = 0
    attended: int = 0
    token_budget_left: int = 0
    verified_drafts: int = 0
    accepted_drafts: int = 0
    drafted_sequences: int = 0
    accepted_at: list[int] = []
    speculating: bool = False
    graph_steps: dict[str, int] = {}
    overlap: OverlapStats = OverlapStats()
    kv_store: dict[str, int] = {}
    votes: dict[str, int] = {}
    vote_wait_s: float = 0.0
    experts: ExpertLoad = ExpertLoad()

    @property
    def busy_s(self) -> float:
        """Seconds with a step under way: the device computed, or stood idle although there was work."""
        return (self.overlap.busy_ns + self.overlap.bubble_ns) / 1e9


def total_stats(parts: Sequence[EngineStats]) -> EngineStats:
    """The sum over the engines of a group; of what is counted by kind, kind by kind."""
    numbers: dict[str, Any] = {name: sum(getattr(part, name) for part in parts) for name in _NUMBERS}
    numbers["speculating"] = any(part.speculating for part in parts)
    kinds: dict[str, Any] = {name: _added([getattr(part, name) for part in parts]) for name in _KINDS}
    tables: dict[str, Any] = {name: _added_up([getattr(part, name) for part in parts]) for name in _TABLES}
    last = parts[0].last_steps if parts else []
    overlap, experts = _overlap([part.overlap for part in parts]), _experts([part.experts for part in parts])
    return EngineStats(**numbers, **kinds, **tables, last_steps=last, overlap=overlap, experts=experts)


def _experts(parts: Sequence[ExpertLoad]) -> ExpertLoad:
    """The balance is the group's already, on every rank."""
    balance = max((part.balance for part in parts), default=0.0)
    return ExpertLoad(rows=sum(part.rows for part in parts), moves=sum(part.moves for part in parts), balance=balance)


def _overlap(parts: Sequence[OverlapStats]) -> OverlapStats:
    """Device time of all ranks added up; the last bubble is the longest of theirs."""
    sums = {name: sum(getattr(part, name) for part in parts) for name in ("busy_ns", "bubble_ns", "host_ns")}
    last = max((part.last_bubble_ns for part in parts), default=0)
    bubbles, busy = (_added_up([getattr(part, name) for part in parts]) for name in ("bubble_counts", "busy_counts"))
    return OverlapStats(**sums, last_bubble_ns=last, bubble_counts=bubbles, busy_counts=busy)


def _added_up(tables: Sequence[list[int]]) -> list[int]:
    """Bucket by bucket; an engine that has not counted yet has none."""
    return [sum(column) for column in zip_longest(*tables, fillvalue=0)]


def _added(tables: Sequence[dict[str, int]]) -> dict[str, int]:
    names = dict.fromkeys(name for table in tables for name in table)
    return {name: sum(table.get(name, 0) for table in tables) for name in names}


_TABLES = ("size_counts", "accepted_at")
_APART = ("overlap", "last_steps", "experts", *_TABLES)
_KINDS = tuple(f.name for f in msgspec.structs.fields(EngineStats) if f.default_factory is dict)
_NUMBERS = tuple(name for name in EngineStats.__struct_fields__ if name not in (*_KINDS, *_APART))


def counts_only(stats: EngineStats) -> EngineStats:
    """What stays true of an engine that is gone: its counts. Gauges are those of an engine that does nothing."""
    gauges: dict[str, Any] = {name: getattr(_NOTHING, name) for name in _GAUGES}
    overlap = msgspec.structs.replace(stats.overlap, last_bubble_ns=0)
    return msgspec.structs.replace(
        stats, **gauges, overlap=overlap, experts=msgspec.structs.replace(stats.experts, balance=0.0)
    )


_NOTHING = EngineStats()
_GAUGES = ("running", "waiting", "num_blocks", "used_blocks", "token_budget_left", "speculating", "last_steps")


class BoundedPairs(msgspec.Struct, frozen=True):
    """Of the pairs that ``attended`` counts at most ``most`` of each token's, as in a window, each with so many
    ``operations``."""

    most: int
    operations: int


class StepCost(msgspec.Struct, frozen=True, kw_only=True):
    """Floating-point operations of a forward pass, a multiply-add counting two: per token computed, per pair that
    ``attended`` counts, per token drawn; and ``bounded``: pairs that a long context makes no more of."""

    token: int
    attended: int
    sampled: int
    bounded: list[BoundedPairs] = []

    def of(self, stats: EngineStats) -> int:
        """Operations since the engine's start. Of bounded pairs an upper bound: who has few is not told from who has
        many."""
        tokens, pairs = stats.scheduled_tokens, stats.attended
        within = sum(min(pairs, tokens * one.most) * one.operations for one in self.bounded)
        return tokens * self.token + pairs * self.attended + within + stats.sampled_tokens * self.sampled

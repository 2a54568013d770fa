"""Records: what one grain of 128 tokens leaves in the store, how large it is, and when it counts as found.

A record's bytes do not depend on the block size of the engine that wrote it: per layer of the record, keys then
values, each (num_kv_heads, 128, head_dim). Nothing here touches tensors; ``worker/kv_transfer.py`` does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum

from headrace.contract.errors import ConfigError
from headrace.contract.layout import KVKind, KVLayout

from .keys import GRAIN


class RecordKind(IntEnum):
    """BLOCK: layers that see everything. AUX: indexer keys and the like. STATE: layers behind a window."""

    BLOCK = 0
    AUX = 1
    STATE = 2


class Match(Enum):
    """Which grains of a prefix must be there: all of them, those of the last window, or none (it is replayed)."""

    ALL = "all"
    TRAILING = "trailing"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class RecordSpec:
    """One kind of record of one model. ``window`` counts visible positions (TRAILING only), own one included."""

    kind: RecordKind
    layers: tuple[int, ...]
    bytes_per_grain: int
    match: Match = Match.ALL
    window: int = 0

    def first_needed(self, num_grains: int) -> int:
        """The first grain that whoever continues after ``num_grains`` grains reads."""
        if self.match is Match.ALL:
            return 0
        if self.match is Match.NONE:
            return num_grains
        return max(0, num_grains * GRAIN - self.window + 1) // GRAIN


def record_specs(layout: KVLayout, element_bytes: int) -> tuple[RecordSpec, ...]:
    """The records of a model: BLOCK for its full-attention layers, one STATE for its sliding ones."""
    full = tuple(sorted(x for g in layout.groups if g.kind is KVKind.FULL for x in g.layers))
    sliding = tuple(sorted(x for g in layout.groups if g.kind is KVKind.SLIDING for x in g.layers))
    per_layer = 2 * GRAIN * layout.num_kv_heads * layout.head_dim * element_bytes
    specs = []
    if full:
        specs.append(RecordSpec(RecordKind.BLOCK, full, per_layer * len(full)))
    if sliding:
        window = max(g.window for g in layout.groups if g.kind is KVKind.SLIDING)
        size = per_layer * len(sliding)
        specs.append(RecordSpec(RecordKind.STATE, sliding, size, Match.TRAILING, window))
    return tuple(specs)


def usable_grains(specs: Sequence[RecordSpec], num_grains: int, has: Callable[[int, RecordKind], bool]) -> int:
    """The longest prefix, at most ``num_grains``, of which every kind has what its match rule asks for.

    A kind that lacks a grain shortens the prefix, and a shorter one asks the others anew, until all agree.
    """
    end, agreed = num_grains, False
    while end > 0 and not agreed:
        agreed = True
        for spec in specs:
            missing = _first_missing(spec, end, has)
            if missing is not None:
                end, agreed = missing, False
    return end


def _first_missing(spec: RecordSpec, end: int, has: Callable[[int, RecordKind], bool]) -> int | None:
    """Where a prefix of ``end`` grains must be cut for this kind's sake: before a grain that is missing."""
    needed = range(spec.first_needed(end), end)
    if spec.match is Match.TRAILING:  # from the end: a hole rules out every end whose window reaches it
        needed = reversed(needed)  # type: ignore[assignment]
    return next((grain for grain in needed if not has(grain, spec.kind)), None)


def blocks_per_grain(block_size: int) -> int:
    """Device blocks of a grain. Raises ConfigError for a block size that does not divide it."""
    if GRAIN % block_size:
        raise ConfigError(
            "block_size", f"the KV store keeps grains of {GRAIN} tokens: {block_size} must divide {GRAIN}"
        )
    return GRAIN // block_size

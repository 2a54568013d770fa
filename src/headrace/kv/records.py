"""Records: what one grain of 128 tokens leaves in the store, how large it is, and when it counts as found.

A record of keys and values does not depend on the block size of the engine that wrote it: per layer, keys then values,
each (num_kv_heads, 128, row). One of a model that keeps bytes only it can read is blocks as they are. Nothing here
touches tensors; ``worker/kv_transfer.py`` and ``worker/block_transfer.py`` do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, IntEnum

from headrace.contract.errors import ConfigError
from headrace.contract.layout import KVKind, KVLayout, RecordLayout, kv_row_bytes

from .keys import GRAIN


class RecordKind(IntEnum):
    """BLOCK: layers that see everything. AUX: what a few tokens look back at. STATE: layers behind a window."""

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
    """One kind of record of one model: these layers, which are those of these KV groups.

    ``window`` counts visible positions (TRAILING only), own one included.
    """

    kind: RecordKind
    layers: tuple[int, ...]
    bytes_per_grain: int
    groups: tuple[int, ...] = (0,)
    match: Match = Match.ALL
    window: int = 0

    def first_needed(self, num_grains: int) -> int:
        """The first grain that whoever continues after ``num_grains`` grains reads."""
        if self.match is Match.ALL:
            return 0
        if self.match is Match.NONE:
            return num_grains
        return max(0, num_grains * GRAIN - self.window + 1) // GRAIN

    def first_block(self, block_size: int) -> int:
        """The first block of a grain that must be there: those behind a window's reach from the grain's end need not.

        So a STATE record serves whoever continues at the end of its grain, and nobody who continues inside it.
        """
        reach = GRAIN if self.match is Match.ALL else self.window - 1
        return max(0, GRAIN - reach) // block_size

    def whole(self, blocks: Sequence[int], num_groups: int) -> bool:
        """Whether a grain's blocks (of all groups, group after group; 0: none) hold what this record needs."""
        per_group = len(blocks) // num_groups
        first = self.first_block(GRAIN // per_group)
        return all(0 not in blocks[g * per_group + first : (g + 1) * per_group] for g in self.groups)


@dataclass(frozen=True, slots=True)
class StoreMatch:
    """The first ``grains`` of a chain can be had, under ``lease``; ``turn``: in which the deepest was stored.
    ``windows_elsewhere``: records of windows may have been found beside the store, not in it."""

    grains: int
    turn: int = 0
    lease: int = 0
    windows_elsewhere: bool = False

    def proven(self, keys: Sequence[bytes], specs: Sequence[RecordSpec]) -> list[tuple[bytes, int]]:
        """What of the chain ``keys`` the store is known to hold: of each kind the grains that had to be there."""
        told = [spec for spec in specs if spec.match is Match.ALL or not self.windows_elsewhere]
        return [(key, int(spec.kind)) for spec in told for key in keys[spec.first_needed(self.grains) : self.grains]]


def most_grains(specs: Sequence[RecordSpec], num_tokens: int) -> int:
    """How much of a prompt may be loaded. One token is left to compute; of its last grain's blocks some may be used,
    but not where a window would have to continue inside a grain: then one grain is given back.
    """
    inside = all(spec.match is Match.ALL for spec in specs)
    return num_tokens // GRAIN if inside else (num_tokens - 1) // GRAIN


def record_specs(layout: KVLayout, kv_dtype: str) -> tuple[RecordSpec, ...]:
    """The records of a model: BLOCK for its full-attention layers, one STATE for its sliding ones."""
    per_layer = 2 * GRAIN * layout.num_kv_heads * kv_row_bytes(kv_dtype, layout.head_dim)
    specs = []
    for kind, record, match in (
        (KVKind.FULL, RecordKind.BLOCK, Match.ALL),
        (KVKind.SLIDING, RecordKind.STATE, Match.TRAILING),
    ):
        groups = tuple(i for i, group in enumerate(layout.groups) if group.kind is kind)
        layers = tuple(sorted(x for i in groups for x in layout.groups[i].layers))
        window = max((layout.groups[i].window for i in groups), default=0)
        if layers:
            specs.append(RecordSpec(record, layers, per_layer * len(layers), groups, match, window))
    return tuple(specs)


def block_specs(layout: RecordLayout, block_size: int) -> tuple[RecordSpec, ...]:
    """The records of a model whose blocks are bytes: what each group uses of the grain's blocks, from the first that is
    needed.

    Windows of several lengths leave two kinds: the shortest one's blocks are soon gone, and the others' are not.
    """
    windows = sorted({group.window for group in layout.groups if group.kind is KVKind.SLIDING})
    short = windows[0] if len(windows) > 1 else 0
    specs = []
    for record, match, mine in (
        (RecordKind.BLOCK, Match.ALL, lambda g: g.kind is KVKind.FULL),
        (RecordKind.AUX, Match.TRAILING, lambda g: g.kind is KVKind.SLIDING and g.window == short),
        (RecordKind.STATE, Match.TRAILING, lambda g: g.kind is KVKind.SLIDING and g.window != short),
    ):
        groups = tuple(i for i, group in enumerate(layout.groups) if mine(group))
        window = max((layout.groups[i].window for i in groups), default=0)
        spec = RecordSpec(record, (), 0, groups, match, window)
        blocks = blocks_per_grain(block_size) - spec.first_block(block_size)
        used = sum(layout.used_bytes(group, block_size) for group in groups)
        if groups:
            specs.append(replace(spec, bytes_per_grain=blocks * used))
    return tuple(specs)


@dataclass(frozen=True, slots=True)
class Need:
    """What one kind asks of a prefix: ``has`` a grain, for every grain (``whole``) or from ``first_needed(its end)``
    on, which must not fall as the end rises."""

    has: Callable[[int], bool]
    first_needed: Callable[[int], int]
    whole: bool


def usable_grains(specs: Sequence[RecordSpec], num_grains: int, has: Callable[[int, RecordKind], bool]) -> int:
    """The longest prefix, at most ``num_grains``, of which every kind has what its match rule asks for."""
    needs = [
        Need(lambda grain, kind=spec.kind: has(grain, kind), spec.first_needed, spec.match is Match.ALL)  # type: ignore[misc]
        for spec in specs
    ]
    return longest_prefix(needs, num_grains)


def longest_prefix(needs: Sequence[Need], num_grains: int) -> int:
    """The longest prefix with which all agree. Looks at each grain once for each kind: chains are long, and others
    wait for the thread that does this."""
    end = num_grains
    for need in needs:
        if need.whole:
            end = next((grain for grain in range(end) if not need.has(grain)), end)
    windows = [(need, _last_missing(need, end)) for need in needs if not need.whole]
    while end > 0:
        # A hole rules out every end whose window reaches it, and those are all down to the hole.
        holes = [missing[end] for need, missing in windows if missing[end] >= need.first_needed(end)]
        if not holes:
            break
        end = min(holes)
    return end


def _last_missing(need: Need, num_grains: int) -> list[int]:
    """For every end the last grain before it that is missing; -1: there is none."""
    out = [-1]
    for grain in range(num_grains):
        out.append(out[-1] if need.has(grain) else grain)
    return out


def blocks_per_grain(block_size: int) -> int:
    """Device blocks of a grain. Raises ConfigError for a block size that does not divide it."""
    if GRAIN % block_size:
        raise ConfigError(
            "block_size", f"the KV store keeps grains of {GRAIN} tokens: {block_size} must divide {GRAIN}"
        )
    return GRAIN // block_size

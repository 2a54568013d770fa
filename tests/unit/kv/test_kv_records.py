"""Records of a grain: their sizes, and how long a prefix is when some are missing."""

from __future__ import annotations

import itertools

import pytest

from headrace.contract.errors import ConfigError
from headrace.contract.layout import KVGroup, KVKind, KVLayout
from headrace.kv.records import Match, RecordKind, RecordSpec, blocks_per_grain, record_specs, usable_grains

FULL = KVGroup(KVKind.FULL, 0, (1, 3))
SLIDING = KVGroup(KVKind.SLIDING, 200, (0, 2))
BLOCK = RecordSpec(RecordKind.BLOCK, (0,), 1)
STATE = RecordSpec(RecordKind.STATE, (1,), 1, (1,), Match.TRAILING, 200)


def test_sizes_follow_from_the_layout() -> None:
    specs = record_specs(KVLayout(4, 2, 16, (FULL, SLIDING)), kv_dtype="bfloat16")
    assert [(s.kind, s.layers, s.match, s.groups) for s in specs] == [
        (RecordKind.BLOCK, (1, 3), Match.ALL, (0,)),
        (RecordKind.STATE, (0, 2), Match.TRAILING, (1,)),
    ]
    assert {s.bytes_per_grain for s in specs} == {2 * 2 * 128 * 2 * 16 * 2}


def test_a_window_reaches_back_from_the_next_position() -> None:
    # Position 512 sees 313..512 through a window of 200: grains 2 and 3. One of 129 sees 384..512: grain 3 alone.
    assert STATE.first_needed(4) == 2
    assert RecordSpec(RecordKind.STATE, (), 1, (1,), Match.TRAILING, 129).first_needed(4) == 3
    assert RecordSpec(RecordKind.STATE, (), 1, (1,), Match.TRAILING, 130).first_needed(4) == 2
    assert RecordSpec(RecordKind.STATE, (), 1, (1,), Match.TRAILING, 1).first_needed(4) == 4
    assert RecordSpec(RecordKind.STATE, (), 1, (1,), Match.NONE).first_needed(4) == 4


@pytest.mark.parametrize("held", list(itertools.product((False, True), repeat=8)))
def test_usable_prefix_is_the_longest_that_all_kinds_allow(held: tuple[bool, ...]) -> None:
    def has(grain: int, kind: RecordKind) -> bool:
        return held[grain] if kind is RecordKind.BLOCK else held[4 + grain]

    def fits(end: int) -> bool:
        return all(has(g, s.kind) for s in (BLOCK, STATE) for g in range(s.first_needed(end), end))

    assert usable_grains((BLOCK, STATE), 4, has) == max(end for end in range(5) if fits(end))


def test_block_sizes_must_divide_a_grain() -> None:
    assert [blocks_per_grain(size) for size in (1, 16, 32, 128)] == [128, 8, 4, 1]
    for size in (48, 256):
        with pytest.raises(ConfigError, match="block_size"):
            blocks_per_grain(size)


def test_a_long_chain_with_no_window_anywhere_is_looked_at_once() -> None:
    asked = 0

    def has(grain: int, kind: RecordKind) -> bool:
        nonlocal asked
        del grain
        asked += 1
        return kind is RecordKind.BLOCK

    wide = RecordSpec(RecordKind.STATE, (1,), 1, (0,), Match.TRAILING, window=1 << 40)
    assert usable_grains((BLOCK, STATE, wide), 4096, has) == 0
    assert asked == 3 * 4096  # not 4096 times as many: a server's other clients wait for this

"""A memory that knows what every KV slot holds: it takes the writes of each planned step and checks the reads.

Content is a running hash of everything that shaped it, so a slot that was never written, was overwritten, or belongs to
another prefix is noticed the moment a step would read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

FULL = 0


def prefix_hashes(seed: object, tokens: Sequence[int]) -> list[int]:
    """For each position the hash of all up to it; ``seed`` stands for adapter, salt and the like."""
    out, value = [], hash(seed)
    for token in tokens:
        value = hash((value, token))
        out.append(value)
    return out


class ShadowKV:
    """One dictionary of slots over all groups (a block belongs to one group at a time)."""

    def __init__(self, block_size: int, groups: Sequence[tuple[int, int]]) -> None:
        self.block_size = block_size
        self.groups = groups
        self.slots: dict[int, int] = {}
        self.written: dict[int, list[int]] = {}  # step → slots

    def run(self, plan: Any, hashes: dict[int, list[int]], tables: dict[int, list[list[int]]]) -> None:
        """One planned step: all its rows are written before any is read, as the worker does in each layer."""
        columns = (plan.seq_ids, plan.num_computed, plan.num_scheduled)
        rows = list(zip(*(column.tolist() for column in columns)))
        written = self.written[plan.step] = []
        for seq_id, start, q in rows:
            for table in tables[seq_id]:
                for position in range(start, start + q):
                    slot = self._slot(table, position)
                    self.slots[slot] = hashes[seq_id][position]
                    written.append(slot)
        for seq_id, start, q in rows:
            for (kind, window), table in zip(self.groups, tables[seq_id]):
                seen = 0 if kind == FULL else max(0, start - window + 1)
                for position in range(seen, start + q):
                    held = self.slots.get(self._slot(table, position))
                    assert held == hashes[seq_id][position], (plan.step, seq_id, kind, position)

    def _slot(self, table: list[int], position: int) -> int:
        block = table[position // self.block_size]
        assert block != 0, "a block behind the window is read or written"
        return block * self.block_size + position % self.block_size

    def lost(self, steps: Sequence[int]) -> None:
        """Steps that did not run: what they should have written is not there."""
        for step in steps:
            for slot in self.written[step]:
                self.slots.pop(slot, None)

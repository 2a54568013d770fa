"""Packing of a step told: which row of the batch is which token of which sequence, and where its KV goes.

Formulas: positions = computed + local offset; slot = block * block_size + position % block_size. Worked out
from the story alone, so that it can be held against what the packer really did.
"""

from __future__ import annotations

from dataclasses import dataclass

from .story import StepStory


@dataclass(frozen=True, slots=True)
class Packing:
    """``T`` rows, ``S`` slices. ``slots``: of KV group 0; ``discard``: 1 for slices that emit nothing."""

    request_index: list[int]  # (T,)
    positions: list[int]  # (T,)
    query_start_loc: list[int]  # (S+1,)
    seq_lens: list[int]  # (S,)
    logits_indices: list[int]  # rows whose logits are wanted
    slots: list[int]  # (T,)
    discard: list[int]  # (S,)


def pack(step: StepStory, block_size: int) -> Packing:
    """The packing of one step. A slice with drafts wants the logits of all rows that are verified."""
    packing = Packing([], [], [0], [], [], [], [])
    for i, piece in enumerate(step.slices):
        start, table = packing.query_start_loc[-1], piece.tables[0]
        end = start + piece.num_scheduled
        for position in range(piece.first_position, piece.first_position + piece.num_scheduled):
            packing.request_index.append(i)
            packing.positions.append(position)
            packing.slots.append(table[position // block_size] * block_size + position % block_size)
        packing.query_start_loc.append(end)
        packing.seq_lens.append(piece.first_position + piece.num_scheduled)
        packing.logits_indices.extend(range(end - 1 - piece.num_drafts, end))
        packing.discard.append(0 if piece.samples else 1)
    return packing

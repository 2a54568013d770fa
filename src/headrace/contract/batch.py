"""PackedBatch: the rows of one forward pass as host arrays (packer → runner). The packer fills, nobody resizes."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from .plan import ByteArray, IntArray

POISON = -0x5A5A5A5A  # no token, position, slot or block


def _nothing() -> IntArray:
    return np.empty(0, dtype=np.int32)


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """T tokens in S slices, L rows of logits, G KV groups. Unknown input ids (-1) are filled in on the device.

    W is T but where context-parallel ranks share a prompt step: W counts the step's rows, T this rank's, which are as
    many on all ranks. What pads them (id 0 at position 0, behind a slice's own rows) is of no slot. There L counts
    the slices whose last position is this rank's: logits row l is of slice ``request_index[logits_indices[l]]``.
    """

    input_ids: IntArray  # (T,)
    request_index: IntArray  # (T,) slice of each token
    positions: IntArray  # (T,)
    query_start_loc: IntArray  # (S+1,)
    seq_lens: IntArray  # (S,)
    logits_indices: IntArray  # (L,)
    discard: ByteArray  # (S,) 1 = prefill unfinished: its logits row is not sampled
    prev_positions: IntArray  # (S,) the slice's number in the previous step, -1 = was not there
    block_tables: IntArray  # (G, S, max_blocks)
    slots: IntArray  # (G, W) in the order of the plan, -1 where another rank keeps the position's KV
    # (W,) a row's place once the rows of all ranks lie one after another; empty where ranks share nothing
    gather_index: IntArray = field(default_factory=_nothing)

    def poison(self) -> None:
        """Overwrites everything with values no step can hold. For tests of who keeps what."""
        for array in (self.input_ids, self.request_index, self.positions, self.query_start_loc, self.seq_lens):
            array.fill(POISON)
        for array in (self.logits_indices, self.prev_positions, self.block_tables, self.slots, self.gather_index):
            array.fill(POISON)
        self.discard.fill(255)

    @staticmethod
    def empty(
        num_tokens: int, num_slices: int, num_logits: int, num_groups: int, max_blocks: int, shared: int | None = None
    ) -> PackedBatch:
        """Uninitialised arrays of the right sizes; ``shared`` is W of a prompt step that ranks share."""

        def ints(*shape: int) -> IntArray:
            return np.empty(shape, dtype=np.int32)

        return PackedBatch(
            input_ids=ints(num_tokens),
            request_index=ints(num_tokens),
            positions=ints(num_tokens),
            query_start_loc=ints(num_slices + 1),
            seq_lens=ints(num_slices),
            logits_indices=ints(num_logits),
            discard=np.empty(num_slices, dtype=np.uint8),
            prev_positions=ints(num_slices),
            block_tables=ints(num_groups, num_slices, max_blocks),
            slots=ints(num_groups, num_tokens if shared is None else shared),
            gather_index=ints(shared or 0),
        )

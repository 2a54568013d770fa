"""Packer: keeps the worker's rows and turns a plan into a PackedBatch. Host side only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

import numpy as np
from numpy.typing import NDArray

from headrace._core import RowTable
from headrace.contract.batch import PackedBatch
from headrace.contract.plan import IntArray, SequenceStart, StepKind, StepPlan

from .sampler import is_plain_greedy


class Packer:
    """Rows of live sequences: tokens and block tables (C++), and how each wants to be sampled.

    Of ``cp_size`` context-parallel ranks that share prompt steps, rank ``cp_rank`` packs what it computes. MIXED steps
    are refused then.
    """

    def __init__(self, block_size: int, num_groups: int, cp_size: int = 1, cp_rank: int = 0) -> None:
        self._rows = RowTable(block_size, num_groups, cp_size=cp_size, cp_rank=cp_rank)
        self._shared = cp_size > 1
        self._num_groups = num_groups
        self._starts: dict[int, SequenceStart] = {}
        self._scored: set[int] = set()
        self._plain: set[int] = set()  # sequences that is_plain_greedy holds for

    def pack(self, plan: StepPlan, starts: Sequence[SequenceStart]) -> PackedBatch:
        """Takes the plan's news over and fills new arrays. Raises ValueError on a plan that does not fit."""
        for seq_id in plan.dropped.tolist():
            self._starts.pop(seq_id, None)
            self._plain.discard(seq_id)
            self._scored.discard(seq_id)
        for start in starts:
            self._starts[start.seq_id] = start
            (self._plain.add if is_plain_greedy(start) else self._plain.discard)(start.seq_id)
            scored = start.sampling.prompt_logprobs is not None
            (self._scored.add if scored else self._scored.discard)(start.seq_id)
        shared = plan.total_tokens if self._shared and plan.kind == StepKind.PREFILL else None
        num_tokens = plan.total_tokens if shared is None else self._rows.num_rows(plan)
        num_slices = len(plan.seq_ids)

        def room(num_logits: int, max_blocks: int) -> PackedBatch:
            return PackedBatch.empty(num_tokens, num_slices, num_logits, self._num_groups, max_blocks, shared)

        return cast(PackedBatch, self._rows.take(plan, room))

    def start(self, seq_id: int) -> SequenceStart:
        return self._starts[seq_id]

    def all_plain_greedy(self, seq_ids: Iterable[int]) -> bool:
        """Whether none of these sequences needs logits: see ``sampler.is_plain_greedy``."""
        return self._plain.issuperset(seq_ids)

    @property
    def any_scored(self) -> bool:
        """Whether some live sequence wants prompt logprobs."""
        return bool(self._scored)

    def tokens(self, seq_id: int) -> IntArray:
        """All tokens known of a sequence, read-only."""
        return self._rows.tokens(seq_id)

    def append(self, seq_ids: NDArray[np.int64], tokens: IntArray) -> None:
        """What a finished step has sampled, token by token: a sequence comes as often as it has tokens, in their order.
        Those dropped meanwhile are passed over."""
        self._rows.append_each(seq_ids, np.ascontiguousarray(tokens, dtype=np.int32))

    def __len__(self) -> int:
        return len(self._rows)

"""Drives a model the way a worker does, with one block table per sequence. Test helper; schedules nothing."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.kernels.ops import Ops
from headrace.models.context import ForwardContext, GroupIndex, Model
from headrace.worker.kv_tensors import allocate_kv


class PagedRunner:
    """Keeps the caches of ``num_seqs`` sequences of at most ``capacity`` tokens. Block 0 is never handed out.

    Unused cache entries are NaN, so that reading one shows. Blocks of different sequences and groups are
    interleaved, so that a table is never a plain range.
    """

    def __init__(self, model: Model, ops: Ops, num_seqs: int, capacity: int, block_size: int = 4) -> None:
        self.model, self.ops, self.block_size = model, ops, block_size
        layout = model.kv_layout
        per_seq = -(-capacity // block_size)
        num_groups = len(layout.groups)
        blocks = torch.arange(1, 1 + per_seq * num_groups * num_seqs, dtype=torch.int32)
        self.tables = blocks.view(per_seq, num_groups, num_seqs).permute(1, 2, 0).contiguous()
        self.layers = allocate_kv(layout, len(blocks) + 1, block_size, poison=True)
        self.lengths = [0] * num_seqs

    def step(self, work: dict[int, list[int]]) -> list[Tensor]:
        """Feed ``work[seq]`` to each sequence; hidden states (num_tokens, hidden) per sequence."""
        return list(self.model.forward(self.context(work)).split([len(ids) for ids in work.values()]))

    def context(self, work: dict[int, list[int]], known: dict[int, int] | None = None) -> ForwardContext:
        """The packed step that feeds ``work[seq]`` to each sequence, which then counts as done. ``known``: how many
        tokens a sequence is known to have."""
        seqs, counts = list(work), [len(ids) for ids in work.values()]
        positions = [torch.arange(self.lengths[s], self.lengths[s] + len(work[s])) for s in seqs]
        for s in seqs:
            self.lengths[s] += len(work[s])
        return ForwardContext(
            ops=self.ops,
            input_ids=torch.tensor([t for ids in work.values() for t in ids], dtype=torch.int32),
            positions=torch.cat(positions).int(),
            query_start_loc=torch.tensor([0, *counts]).cumsum(0).int(),
            seq_lens=torch.tensor([self.lengths[s] for s in seqs], dtype=torch.int32),
            groups=[self._group(g, seqs, positions) for g in range(len(self.model.kv_layout.groups))],
            layers=self.layers,
            known_lens=None if known is None else torch.tensor([known[s] for s in seqs], dtype=torch.int32),
        )

    def logits(self, work: dict[int, list[int]]) -> list[Tensor]:
        return [self.model.logits(hidden) for hidden in self.step(work)]

    def _group(self, group: int, seqs: list[int], positions: list[Tensor]) -> GroupIndex:
        slots = []
        for s, at in zip(seqs, positions):
            blocks = self.tables[group, s][at // self.block_size]
            slots.append(blocks * self.block_size + at % self.block_size)
        return GroupIndex(self.tables[group, seqs].contiguous(), torch.cat(slots).int())


def greedy(runner: PagedRunner, prompt: list[int], num_tokens: int) -> list[int]:
    """Greedy continuation of one prompt in sequence 0."""
    ids = [int(runner.logits({0: prompt})[0][-1].argmax())]
    while len(ids) < num_tokens:
        ids.append(int(runner.logits({0: [ids[-1]]})[0][-1].argmax()))
    return ids

"""Runner: a packed batch through the model. Runs on the device thread; holds the KV tensors, no sequence state."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headrace.contract.batch import PackedBatch
from headrace.kernels.ops import Ops
from headrace.models.context import ForwardContext, GroupIndex, LayerKV, Model


class Runner:
    """``forward`` gives hidden states of all rows; ``logits`` the head's output for chosen rows."""

    def __init__(self, model: Model, ops: Ops, kv: Sequence[LayerKV]) -> None:
        self.model = model
        self.ops = ops
        self._kv = kv

    def context(self, batch: PackedBatch) -> ForwardContext:
        """The batch's arrays as tensors, without copies."""
        groups = [
            GroupIndex(torch.from_numpy(table), torch.from_numpy(slots))
            for table, slots in zip(batch.block_tables, batch.slots)
        ]
        return ForwardContext(
            ops=self.ops,
            input_ids=torch.from_numpy(batch.input_ids),
            positions=torch.from_numpy(batch.positions),
            query_start_loc=torch.from_numpy(batch.query_start_loc),
            seq_lens=torch.from_numpy(batch.seq_lens),
            groups=groups,
            layers=self._kv,
        )

    def forward(self, context: ForwardContext) -> Tensor:
        """Hidden states (T, hidden)."""
        return self.model.forward(context)

    def logits(self, hidden: Tensor, rows: Tensor) -> Tensor:
        """Logits (R, V) of the given rows (int64) of ``hidden``."""
        return self.model.logits(hidden[rows])

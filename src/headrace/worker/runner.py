"""Runner: a packed batch through the model. Runs on the device thread; holds the KV tensors, no sequence state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from headrace.contract.batch import PackedBatch
from headrace.contract.plan import IntArray
from headrace.kernels.ops import Ops
from headrace.models.context import ForwardContext, GroupIndex, LayerKV, Model, SharesExperts

from .graphs import Graphs


class Mirror(Protocol):
    """Other ranks that run what this one runs (``followers``)."""

    def step(self, batch: PackedBatch) -> None: ...
    def clone(self, pairs: IntArray) -> None: ...


class Runner:
    """``forward`` gives hidden states of all rows, and logits or greedy ids of those asked for; ``logits`` is the head
    alone.

    With ``graphs`` a step that fits one is replayed from it; its results are then views that the next step overwrites.
    """

    def __init__(
        self,
        model: Model,
        ops: Ops,
        kv: Sequence[LayerKV],
        graphs: Graphs | None = None,
        followers: Mirror | None = None,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        """``followers`` are told of everything that this rank does to its KV."""
        self.model = model
        self.ops = ops
        self.graphs = graphs
        self._kv = kv
        self._followers = followers
        self._on_close = on_close

    def close(self) -> None:
        """No step comes any more."""
        if self._on_close is not None:
            self._on_close()

    @property
    def kv(self) -> Sequence[LayerKV]:
        """Keys and values of every layer."""
        return self._kv

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

    def clone_blocks(self, pairs: IntArray) -> None:
        """Copies KV blocks, ``pairs`` flat (from, to), in this order: one may be a later one's source."""
        if len(pairs) == 0:
            return
        if self._followers is not None:
            self._followers.clone(pairs)
        tensors = self._kv_tensors()
        for source, target in zip(pairs[::2].tolist(), pairs[1::2].tolist()):
            for tensor in tensors:
                tensor[target].copy_(tensor[source])

    def read_blocks(self, blocks: Sequence[int]) -> list[Tensor]:
        """Copies of whole blocks, one tensor (len(blocks), ...) per KV tensor."""
        index = torch.tensor(list(blocks), dtype=torch.int64)
        return [tensor[index] for tensor in self._kv_tensors()]

    def write_blocks(self, blocks: Sequence[int], content: Sequence[Tensor], rows: Sequence[int]) -> None:
        """Row ``rows[i]`` of each tensor of ``content`` into block ``blocks[i]``."""
        index, source = torch.tensor(list(blocks), dtype=torch.int64), torch.tensor(list(rows), dtype=torch.int64)
        for tensor, copy in zip(self._kv_tensors(), content, strict=True):
            tensor[index] = copy[source]

    def _kv_tensors(self) -> list[Tensor]:
        return list({t.data_ptr(): t for layer in self._kv for t in (layer.k, layer.v)}.values())  # groups share them

    def forward(
        self, batch: PackedBatch, context: ForwardContext, rows: Tensor, greedy: bool = False
    ) -> tuple[Tensor, Tensor]:
        """(hidden (T, D), logits (R, V)) with logits for ``rows`` (R,) int32 of the batch; with ``greedy`` not their
        logits but the ids (R,) int32 that greedy sampling draws from them."""
        if self._followers is not None:
            self._followers.step(batch)
        graph = self.graphs.find(batch, len(rows)) if self.graphs is not None else None
        if graph is not None:
            return graph.run(context, rows, greedy)
        hidden = self.model.forward(context)
        if greedy:
            return hidden, self.model.greedy_ids(self.ops.gather_rows(hidden, rows))
        return hidden, self.logits(hidden, rows)

    @property
    def shared(self) -> bool:
        """Whether other ranks run every step too, and wait in it for this one."""
        return isinstance(self.model, SharesExperts) and self.model.shared

    def leave(self) -> None:
        """Lets ranks that wait for this one know that no step comes any more."""
        if isinstance(self.model, SharesExperts):
            self.model.leave()

    def company(self) -> None:
        """A step in company of other ranks: there are no rows here, but maybe experts that others need."""
        if isinstance(self.model, SharesExperts):
            self.model.company()

    def logits(self, hidden: Tensor, rows: Tensor) -> Tensor:
        """Logits (R, V) of the given rows (R,) int32 of ``hidden``."""
        return self.model.logits(self.ops.gather_rows(hidden, rows))

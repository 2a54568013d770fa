"""The KV pool's memory: one pair of tensors per layer of a group, shared by all groups through block ids."""

from __future__ import annotations

import numpy as np
import torch

from headrace.contract.layout import KVLayout
from headrace.models.context import LayerKV


def allocate_kv(
    layout: KVLayout, num_blocks: int, block_size: int, *, narrow: bool = False, poison: bool = False
) -> list[LayerKV]:
    """Per-layer caches (num_blocks, num_kv_heads, block_size, head_dim), float32, or bfloat16 when ``narrow``.

    Layer j of every group shares tensor pair j: a block id belongs to one group at a time. Pages are touched by the
    operating system only when written. ``poison`` fills everything with NaN, for tests: nothing unwritten may be read.
    """
    shape = (num_blocks, layout.num_kv_heads, block_size, layout.head_dim)

    def tensor() -> torch.Tensor:
        dtype = torch.bfloat16 if narrow else torch.float32
        if poison:
            return torch.full(shape, float("nan"), dtype=dtype)
        return torch.from_numpy(np.zeros(shape, dtype=np.uint16 if narrow else np.float32)).view(dtype)

    pairs = [(tensor(), tensor()) for _ in range(layout.layers_per_group)]
    places = [layout.place(layer) for layer in range(layout.num_layers)]
    return [LayerKV(*pairs[index], group) for group, index in places]

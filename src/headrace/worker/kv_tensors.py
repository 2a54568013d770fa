"""The KV pool's memory, shared by all groups through block ids: a pair of tensors per layer of a group, or records."""

from __future__ import annotations

import numpy as np
import torch

from headrace.contract.layout import KVLayout, Layout, RecordLayout
from headrace.models.context import LayerKV


def allocate_kv(
    layout: Layout, num_blocks: int, block_size: int, *, narrow: bool = False, poison: bool = False
) -> list[LayerKV]:
    """The caches of a layout: per layer for ``KVLayout``, one tensor of bytes for ``RecordLayout``.

    ``poison`` fills everything with NaN, for tests: nothing unwritten may be read.
    """
    if isinstance(layout, RecordLayout):
        return [_allocate_records(layout, num_blocks, block_size, poison)]
    return _allocate_layers(layout, num_blocks, block_size, narrow=narrow, poison=poison)


def _allocate_records(layout: RecordLayout, num_blocks: int, block_size: int, poison: bool) -> LayerKV:
    """(num_blocks, 1, block_size, bytes per token) uint8, as both k and v. All ones is NaN in every 8-bit and float
    format records use."""
    shape = (num_blocks, 1, block_size, layout.block_bytes(block_size) // block_size)
    blocks = np.full(shape, 0xFF, dtype=np.uint8) if poison else np.zeros(shape, dtype=np.uint8)
    records = torch.from_numpy(blocks)
    return LayerKV(records, records, 0)


def _allocate_layers(
    layout: KVLayout, num_blocks: int, block_size: int, *, narrow: bool, poison: bool
) -> list[LayerKV]:
    """Per-layer caches (num_blocks, num_kv_heads, block_size, head_dim), float32, or bfloat16 when ``narrow``.

    Layer j of every group shares tensor pair j: a block id belongs to one group at a time. Pages are touched by the
    operating system only when written.
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

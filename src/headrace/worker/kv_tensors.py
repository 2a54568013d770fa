"""The KV pool's memory, shared by all groups through block ids: a pair of tensors per layer of a group, or records."""

from __future__ import annotations

import numpy as np
import torch

from headrace.contract.layout import KVLayout, Layout, RecordLayout
from headrace.kernels.kv_rows import FORMATS, row_width
from headrace.models.context import LayerKV


def allocate_kv(
    layout: Layout, num_blocks: int, block_size: int, *, kv: str = "float32", poison: bool = False
) -> list[LayerKV]:
    """The caches of a layout: per layer for ``KVLayout``, one tensor of bytes for ``RecordLayout``.

    ``poison`` fills everything with what reads as NaN, for tests: nothing unwritten may be read.
    """
    if isinstance(layout, RecordLayout):
        return [_allocate_records(layout, num_blocks, block_size, poison)]
    return _allocate_layers(layout, num_blocks, block_size, kv=kv, poison=poison)


def _allocate_records(layout: RecordLayout, num_blocks: int, block_size: int, poison: bool) -> LayerKV:
    """(num_blocks, 1, block_size, bytes per token) uint8, as both k and v. All ones is NaN in every 8-bit and float
    format records use."""
    shape = (num_blocks, 1, block_size, layout.block_bytes(block_size) // block_size)
    blocks = np.full(shape, 0xFF, dtype=np.uint8) if poison else np.zeros(shape, dtype=np.uint8)
    records = torch.from_numpy(blocks)
    return LayerKV(records, records, 0)


def _allocate_layers(layout: KVLayout, num_blocks: int, block_size: int, *, kv: str, poison: bool) -> list[LayerKV]:
    """Per-layer caches (num_blocks, num_kv_heads, block_size, row), ``kv`` being a key of ``kv_rows.FORMATS``.

    Layer j of every group shares tensor pair j: a block id belongs to one group at a time. Pages are touched by the
    operating system only when written.
    """
    dtype = FORMATS[kv]
    shape = (num_blocks, layout.num_kv_heads, block_size, row_width(dtype, layout.head_dim))
    as_bytes = (*shape[:3], shape[3] * dtype.itemsize)

    def tensor() -> torch.Tensor:
        zeros = torch.from_numpy(np.zeros(as_bytes, dtype=np.uint8)).view(dtype)
        if poison:
            zeros.view(torch.uint8).fill_(0xFF)  # a NaN as float32 and bfloat16, and so as the scale of codes
        return zeros

    pairs = [(tensor(), tensor()) for _ in range(layout.layers_per_group)]
    places = [layout.place(layer) for layer in range(layout.num_layers)]
    return [LayerKV(*pairs[index], group) for group, index in places]

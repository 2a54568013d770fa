"""The KV pool's memory, shared by all groups through block ids: a pair of tensors per layer of a group, or records.

A block is one piece of memory for all layers. What a sequence uses is then a few large pages, not a few for each
layer, and so is what a fresh pool costs when it is first written.
"""

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
    """Per-layer caches (num_blocks, num_kv_heads, block_size, row), ``kv`` being a key of ``kv_rows.FORMATS``: views of
    (num_blocks, layers of a group, 2, num_kv_heads, block_size, row).

    Layer j of every group shares tensor pair j: a block id belongs to one group at a time. Pages are touched by the
    operating system only when written.
    """
    dtype = FORMATS[kv]
    row = row_width(dtype, layout.head_dim) * dtype.itemsize
    shape = (num_blocks, layout.layers_per_group, 2, layout.num_kv_heads, block_size, row)
    as_bytes = np.zeros(shape, dtype=np.uint8)
    if poison:
        as_bytes.fill(0xFF)  # a NaN as float32 and bfloat16, and so as the scale of codes
    pool = torch.from_numpy(as_bytes).view(dtype)
    places = [layout.place(layer) for layer in range(layout.num_layers)]
    return [LayerKV(pool[:, index, 0], pool[:, index, 1], group) for group, index in places]

"""Attention and choice over byte records on the CPU, read where they lie in the pool."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.dlpack import to_dlpack

from headrace import _kernels

from ..ops import PagedRecords
from ..workspace import empty, rows_of


def _section(records: PagedRecords) -> tuple[int, int, int]:
    return records.offset, records.rows, records.width


def latent_attention(
    q: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    floors: Tensor,
    reach: int,
    window: PagedRecords,
    shared: PagedRecords | None,
    narrow: bool,
    chosen: Tensor | None,
    sink: Tensor,
) -> Tensor:
    """q (T, H, D) -> (T, H, D); see ``Ops.latent_attention``."""
    q = rows_of(q)
    out = empty(*q.shape)
    other = window if shared is None else shared
    _kernels.latent_attention(
        *map(to_dlpack, (q, query_start_loc, seq_lens, floors)),
        reach,
        *map(to_dlpack, (window.blocks, window.table)),
        _section(window),
        to_dlpack(other.table),
        _section(other),
        narrow,
        None if chosen is None else to_dlpack(chosen),
        to_dlpack(sink),
        to_dlpack(out),
    )
    return out


def choose_entries(
    q: Tensor,
    weights: Tensor,
    query_start_loc: Tensor,
    visible: Tensor,
    codes: PagedRecords,
    scales: PagedRecords,
    count: int,
    rounded: bool,
    among: Tensor | None,
    num_blocks: int,
    block_size: int,
) -> tuple[Tensor, Tensor]:
    """Entries (T, count) and blocks (T, num_blocks), int32; see ``Ops.choose_entries``."""
    entries = torch.empty(len(q), count, dtype=torch.int32)
    blocks = torch.empty(len(q), num_blocks, dtype=torch.int32)
    _kernels.choose_entries(
        *map(to_dlpack, (rows_of(q), rows_of(weights), query_start_loc, visible, codes.blocks, codes.table)),
        _section(codes),
        _section(scales),
        rounded,
        block_size,
        None if among is None else to_dlpack(among),
        to_dlpack(entries),
        to_dlpack(blocks),
    )
    return entries, blocks

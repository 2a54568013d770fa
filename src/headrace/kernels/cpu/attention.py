"""Attention over a paged cache on the CPU."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.dlpack import to_dlpack

from headrace import _kernels


def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    scale: float,
    window: int,
) -> Tensor:
    """q (T, Hq, D) -> (T, Hq, D); see ``Ops.paged_attention``. Padding rows come back as zeros."""
    q = q.contiguous()
    out = torch.empty_like(q)
    arrays = map(to_dlpack, (q, k_cache, v_cache, block_table, query_start_loc, seq_lens))
    _kernels.paged_attention(*arrays, scale, window, to_dlpack(out))
    return out

"""Attention over a paged cache on the CPU."""

from __future__ import annotations

from torch import Tensor
from torch.utils.dlpack import to_dlpack

from headrace import _kernels

from ..workspace import empty, rows_of
from .cache import as_capsule


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
    q = rows_of(q)
    out = empty(*q.shape)
    caches = as_capsule(k_cache), as_capsule(v_cache)
    tables = map(to_dlpack, (block_table, query_start_loc, seq_lens))
    _kernels.paged_attention(to_dlpack(q), *caches, *tables, scale, window, to_dlpack(out))
    return out

"""From a fused projection to queries and cache entries, and writing into the paged cache, in torch."""

from __future__ import annotations

import torch
from torch import Tensor

from ..kv_rows import encode, head_dim_of
from .norms import rms_norm
from .rope import rope


def write_kv(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> None:
    """k, v (T, Hkv, D) into caches (B, Hkv, block_size, row), in place; a slot of -1 writes nothing."""
    block_size = k_cache.shape[2]
    kept = slots >= 0
    where = slots[kept].long()
    block, offset = where // block_size, where % block_size
    k_cache[block, :, offset] = encode(k[kept], k_cache.dtype)
    v_cache[block, :, offset] = encode(v[kept], v_cache.dtype)


def qkv_to_cache(
    qkv: Tensor,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    eps: float,
    positions: Tensor,
    table: Tensor,
    interleaved: bool,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
) -> Tensor:
    """qkv (T, (Hq + 2 Hkv) * D): heads are normed and rotated, k and v written; returns q (T, Hq, D)."""
    kv_heads, d = k_cache.shape[1], head_dim_of(k_cache)
    heads = qkv.view(len(qkv), qkv.shape[1] // d, d)
    q, k, v = torch.split_with_sizes(heads, [heads.shape[1] - 2 * kv_heads, kv_heads, kv_heads], dim=1)
    q = q if q_norm is None else rms_norm(q, q_norm, eps)
    k = k if k_norm is None else rms_norm(k, k_norm, eps)
    q, k = rope(q, k, positions, table, interleaved)
    write_kv(k, v, k_cache, v_cache, slots)
    return q

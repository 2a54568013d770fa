"""From a fused projection to queries and cache entries, and writing into the paged cache, on the CPU."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.dlpack import to_dlpack

from headrace import _kernels

from ..kv_rows import head_dim_of
from ..workspace import empty, rows_of


def as_capsule(cache: Tensor) -> object:
    """A cache as the extension takes it: bfloat16 travels as its 16-bit patterns."""
    return to_dlpack(cache.view(torch.uint16) if cache.dtype == torch.bfloat16 else cache)


def write_kv(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> None:
    """k, v (T, Hkv, D) into caches (B, Hkv, block_size, row), in place; a slot of -1 writes nothing."""
    caches = as_capsule(k_cache), as_capsule(v_cache)
    _kernels.write_kv(to_dlpack(rows_of(k)), to_dlpack(rows_of(v)), *caches, to_dlpack(slots))


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
    """qkv (T, (Hq + 2 Hkv) * D) -> q (T, Hq, D); keys and values go to the caches. See ``Ops.qkv_to_cache``."""
    kv_heads, d = k_cache.shape[1], head_dim_of(k_cache)
    out = empty(qkv.shape[0], qkv.shape[1] // d - 2 * kv_heads, d)
    norms = (None if w is None else to_dlpack(w) for w in (q_norm, k_norm))
    places = as_capsule(k_cache), as_capsule(v_cache), to_dlpack(slots), to_dlpack(out)
    _kernels.qkv_to_cache(
        to_dlpack(rows_of(qkv)), *norms, eps, to_dlpack(positions), to_dlpack(table), interleaved, *places
    )
    return out

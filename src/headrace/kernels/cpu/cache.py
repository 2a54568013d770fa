"""From a fused projection to queries and cache entries, and writing into the paged cache, on the CPU."""

from __future__ import annotations

from torch import Tensor
from torch.utils.dlpack import to_dlpack

from headrace import _kernels

from ..workspace import empty, rows_of


def write_kv(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> None:
    """k, v (T, Hkv, D) into caches (B, Hkv, block_size, D), in place; a slot of -1 writes nothing."""
    _kernels.write_kv(*map(to_dlpack, (rows_of(k), rows_of(v), k_cache, v_cache, slots)))


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
    kv_heads, d = k_cache.shape[1], k_cache.shape[3]
    out = empty(qkv.shape[0], qkv.shape[1] // d - 2 * kv_heads, d)
    norms = (None if w is None else to_dlpack(w) for w in (q_norm, k_norm))
    places = map(to_dlpack, (k_cache, v_cache, slots, out))
    _kernels.qkv_to_cache(
        to_dlpack(rows_of(qkv)), *norms, eps, to_dlpack(positions), to_dlpack(table), interleaved, *places
    )
    return out

"""Writing new keys and values into the paged cache, in torch."""

from __future__ import annotations

from torch import Tensor


def write_kv(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> None:
    """k, v (T, Hkv, D) into caches (B, Hkv, block_size, D), in place; a slot of -1 writes nothing."""
    block_size = k_cache.shape[2]
    kept = slots >= 0
    where = slots[kept].long()
    block, offset = where // block_size, where % block_size
    k_cache[block, :, offset] = k[kept]
    v_cache[block, :, offset] = v[kept]

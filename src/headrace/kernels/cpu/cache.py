"""Writing new keys and values into the paged cache on the CPU."""

from __future__ import annotations

from torch import Tensor
from torch.utils.dlpack import to_dlpack

from headrace import _kernels


def write_kv(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> None:
    """k, v (T, Hkv, D) into caches (B, Hkv, block_size, D), in place; a slot of -1 writes nothing."""
    _kernels.write_kv(*map(to_dlpack, (k.contiguous(), v.contiguous(), k_cache, v_cache, slots)))

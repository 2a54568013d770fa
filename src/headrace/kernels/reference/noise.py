"""The sampler's noise: a counter-based hash, so a draw depends on (seed, position, vocabulary id) alone.

Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", 2011), keyed by the
64-bit seed, with counter words (position low, position high, id, 0). Word 0 of the result gives the uniform.
All backends use the same integers, so they draw the same tokens up to the rounding of logarithms.
"""

from __future__ import annotations

import torch
from torch import Tensor

_MULTIPLY = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF


def philox(seed: Tensor, position: Tensor, ids: Tensor) -> Tensor:
    """seed, position, ids int64 (broadcast together) -> word 0 as int64 in [0, 2^32)."""
    key0, key1 = seed & _MASK, (seed >> 32) & _MASK
    c0, c1, c2, c3 = position & _MASK, (position >> 32) & _MASK, ids & _MASK, torch.zeros_like(ids)
    for _ in range(10):
        # The products wrap around int64; the masks below take the right bits of the unsigned product.
        left, right = c0 * _MULTIPLY[0], c2 * _MULTIPLY[1]
        c0, c1 = ((right >> 32) & _MASK) ^ c1 ^ key0, right & _MASK
        c2, c3 = ((left >> 32) & _MASK) ^ c3 ^ key1, left & _MASK
        key0, key1 = (key0 + _WEYL[0]) & _MASK, (key1 + _WEYL[1]) & _MASK
    return c0


def uniform(word: Tensor) -> Tensor:
    """Word -> float32 strictly inside (0, 1), fine near 0: ``min(float(word) 2^-32 + 2^-33, 1 - 2^-24)``."""
    return (word.to(torch.float32) * 2.0**-32 + 2.0**-33).clamp_max(1 - 2.0**-24)


def gumbel(seed: Tensor, position: Tensor, vocab_size: int) -> Tensor:
    """Standard Gumbel noise (R, V) for seed, position (R,).

    ``-log(E)`` with ``E = -log(1 - u)``: large values come from u near 0, where float32 is finest.
    """
    ids = torch.arange(vocab_size, dtype=torch.int64)
    u = uniform(philox(seed[:, None], position[:, None], ids[None, :]))
    return -torch.log(-torch.log1p(-u))

"""Rotary position embedding in torch."""

from __future__ import annotations

import torch
from torch import Tensor


def rope(q: Tensor, k: Tensor, positions: Tensor, table: Tensor, interleaved: bool) -> tuple[Tensor, Tensor]:
    """Rotate q (T, Hq, D) and k (T, Hkv, D) by the angles of their positions.

    table (max_pos, 2, rot/2) holds cosines, then sines. Dimensions from ``rot`` on pass through unchanged.
    """
    cos, sin = table[positions.long()].unbind(1)  # (T, rot/2) each
    return _rotate(q, cos, sin, interleaved), _rotate(k, cos, sin, interleaved)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    half = cos.shape[-1]
    cos, sin = cos[:, None, :], sin[:, None, :]
    turned, rest = x[..., : 2 * half], x[..., 2 * half :]
    if interleaved:
        a, b = turned[..., 0::2], turned[..., 1::2]
        pairs = torch.stack((a * cos - b * sin, b * cos + a * sin), -1)
        return torch.cat((pairs.flatten(-2), rest), -1)
    a, b = turned[..., :half], turned[..., half:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), -1)

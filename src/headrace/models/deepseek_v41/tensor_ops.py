"""Elementwise pieces of the family: sums in a fixed order, smooth functions, rotations. Pure; no parameters, no state.

Torch's own ``sigmoid``, ``softplus``, ``silu`` and ``sum`` pick another code path for the end of a row or for strided
memory, and with it other bits. What is used here is built from operations whose result is a function of the element
alone, so that a row has the same bits in every batch.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .config_parts import Yarn


def row_sum(x: Tensor) -> Tensor:
    """Sum over the last dimension, by halves: the order depends on its length only."""
    while (n := x.shape[-1]) > 1:
        half = (n + 1) // 2
        folded = x[..., :half].clone()
        folded[..., : n - half] += x[..., half:]
        x = folded
    return x.squeeze(-1)


def sum_over(x: Tensor, dim: int) -> Tensor:
    """Sum over a short dimension, in its order."""
    first, *rest = x.unbind(dim)
    total = first
    for part in rest:
        total = total + part
    return total


def sigmoid(x: Tensor) -> Tensor:
    return 1.0 / (1.0 + torch.exp(-x.contiguous()))


def silu(x: Tensor) -> Tensor:
    return x * sigmoid(x)


def softplus(x: Tensor) -> Tensor:
    """log(1 + e^x) without overflow."""
    x = x.contiguous()
    return x.clamp(min=0.0) + torch.log1p(torch.exp(-x.abs()))


def bfloat16(x: Tensor) -> Tensor:
    """Rounded to what bfloat16 holds, in float32."""
    return x.to(torch.bfloat16).to(torch.float32)


# -- rotary positions -------------------------------------------------------------------------------------------------


def inverse_frequencies(theta: float, dims: int, yarn: Yarn | None) -> Tensor:
    """Radians per position of each pair (dims / 2,): theta^(-2i / dims), stretched by YaRN (arXiv 2309.00071, 3.2).

    Pairs that turn often within the original positions are kept, slow ones are divided by the factor, and a ramp over
    the pairs' numbers blends between them.
    """
    frequencies = 1.0 / theta ** (torch.arange(0, dims, 2, dtype=torch.float32) / dims)
    if yarn is None:
        return frequencies

    def pair_with(turns: float) -> float:
        return dims * math.log(yarn.original_positions / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low = max(math.floor(pair_with(yarn.beta_fast)), 0)
    high = min(math.ceil(pair_with(yarn.beta_slow)), dims - 1)
    ramp = (torch.arange(dims // 2, dtype=torch.float32) - low) / max(high - low, 1e-3)
    stretched = ramp.clamp(0.0, 1.0)
    return frequencies / yarn.factor * stretched + frequencies * (1.0 - stretched)


def rotary_table(frequencies: Tensor, max_positions: int) -> Tensor:
    """(max_positions, 2, pairs): cosines, then sines. Angles are multiplied in float32, as in training."""
    angles = torch.outer(torch.arange(max_positions, dtype=torch.float32), frequencies)
    return torch.stack((angles.cos(), angles.sin()), dim=1)


def rotate_tail(x: Tensor, table: Tensor, positions: Tensor, *, back: bool = False) -> Tensor:
    """Rotates the last 2 x pairs dims of ``x`` (T, ..., D): interleaved pairs (2i, 2i+1); ``back`` undoes it.

    ``positions`` (T,) int64.
    """
    pairs = table.shape[2]
    shape = (len(positions), *([1] * (x.dim() - 2)), pairs)
    cos, sin = (part.view(shape) for part in table.index_select(0, positions).unbind(1))
    if back:
        sin = -sin
    tail = x[..., -2 * pairs :]
    even, odd = tail[..., 0::2], tail[..., 1::2]
    turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)
    return torch.cat((x[..., : -2 * pairs], turned), dim=-1)

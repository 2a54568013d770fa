"""How keys and values lie in a paged cache: one row per token and head, as floats or as integer codes.

A row of int16 or int8 codes ends with its scale, a float32 that takes the place of two or four codes: value =
code * scale. The scale is a function of the row alone, so nothing else decides what is read back. Never rounds in a
way of its own: the CPU kernels write the same codes, bit for bit.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from headrace.contract.layout import KV_SCALE_BYTES

# Name of a format -> its dtype.
FORMATS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int16": torch.int16, "int8": torch.int8}
NEXT_TO_NOTHING = 1e-30  # a row with no value above it becomes zeros: its scale would leave the normal numbers


def has_codes(dtype: torch.dtype) -> bool:
    """Whether rows of this dtype are codes with a scale."""
    return not dtype.is_floating_point


def row_width(dtype: torch.dtype, head_dim: int) -> int:
    """Elements of a row for a head of ``head_dim``."""
    return head_dim + (KV_SCALE_BYTES // dtype.itemsize if has_codes(dtype) else 0)


def head_dim_of(cache: Tensor) -> int:
    """Head size of a cache (..., row)."""
    return cache.shape[-1] - row_width(cache.dtype, 0)


def largest_code(dtype: torch.dtype, head_dim: int) -> int:
    """Codes lie in [-n, n]. For int16, n is such that the products of two rows of codes add up inside an int32."""
    if dtype == torch.int8:
        return 127
    padded = -(-head_dim // 16) * 16
    return min(8191, math.isqrt((2**31 - 1) // padded))


def encode(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows (..., D) float32 as a cache of ``dtype`` keeps them, rounded to nearest even: (..., row).

    A row with a value that is not finite reads back as NaN, where it has codes.
    """
    if not has_codes(dtype):
        return x.to(dtype)
    most = torch.where(x.isfinite().all(-1), x.abs().amax(-1), math.nan)
    live = most >= NEXT_TO_NOTHING
    scale = torch.where(live, most / largest_code(dtype, x.shape[-1]), torch.where(most.isnan(), most, 0.0))
    codes = torch.where(live[..., None], (x / torch.where(live, scale, 1.0)[..., None]).round(), 0.0).to(dtype)
    return torch.cat((codes, scale[..., None].contiguous().view(dtype)), -1)


def decode(rows: Tensor) -> Tensor:
    """Cache rows (..., row) as float32 (..., D)."""
    if not has_codes(rows.dtype):
        return rows.float()
    head_dim = head_dim_of(rows)
    scale = rows[..., head_dim:].contiguous().view(torch.float32)
    return rows[..., :head_dim].float() * scale

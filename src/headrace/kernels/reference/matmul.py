"""Weight matrices in torch: here a packed weight is just the float32 tensor (N, K).

Stored blocks are dequantised and activations stay exact: this is what rounding activations is compared with.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..quant import QuantRows, Stored, parts_of


def pack_weight(stored: Stored) -> Tensor:
    """(N, K), or parts that stack to it, of any float dtype or in blocks -> float32, contiguous."""
    parts = [
        part.dequantise() if isinstance(part, QuantRows) else part.detach().to(torch.float32)
        for part in parts_of(stored)
    ]
    return torch.cat(parts).contiguous()


def linear(x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
    """x (T, K), w (N, K) -> (T, N)."""
    return F.linear(x, w, bias)


def embedding(ids: Tensor, w: Tensor) -> Tensor:
    """ids (T,), w (V, K) -> rows (T, K)."""
    return w[ids.long()]


def gather_rows(x: Tensor, rows: Tensor) -> Tensor:
    """x (T, D), rows (R,) int32 -> (R, D)."""
    return x[rows.long()]

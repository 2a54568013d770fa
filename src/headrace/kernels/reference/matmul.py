"""Weight matrices in torch: here a packed weight is just the float32 tensor (N, K)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def pack_weight(w: Tensor) -> Tensor:
    """w (N, K) of any float dtype -> float32, contiguous."""
    return w.detach().to(torch.float32).contiguous()


def linear(x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
    """x (T, K), w (N, K) -> (T, N)."""
    return F.linear(x, w, bias)


def embedding(ids: Tensor, w: Tensor) -> Tensor:
    """ids (T,), w (V, K) -> rows (T, K)."""
    return w[ids.long()]

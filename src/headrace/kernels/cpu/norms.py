"""Root-mean-square norms on the CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace import _kernels


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x (..., D) -> like x; any leading shape is a list of rows."""
    rows = x.contiguous().view(-1, x.shape[-1])
    out = torch.empty_like(rows)
    _kernels.rms_norm(rows, weight, eps, out)
    return out.view(x.shape)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x, residual (T, D) -> (normed sum, sum), both new."""
    x = x.contiguous()
    out, total = torch.empty_like(x), torch.empty_like(x)
    _kernels.add_rms_norm(x, residual.contiguous(), weight, eps, out, total)
    return out, total

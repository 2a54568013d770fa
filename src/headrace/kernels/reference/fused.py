"""Fused products in torch: the ops they stand for, one after another."""

from __future__ import annotations

import torch
from torch import Tensor

from .activation import gelu_tanh_mul, silu_mul
from .matmul import linear
from .norms import rms_norm


def norm_linear(
    x: Tensor, residual: Tensor | None, norm: Tensor, eps: float, w: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """x, residual (T, K) -> (linear of the norm of their sum, their sum)."""
    total = x if residual is None else x + residual
    return linear(rms_norm(total, norm, eps), w, bias), total


def gated_linear(x: Tensor, gelu: bool, w: Tensor) -> Tensor:
    """x (T, 2K) -> (T, N)."""
    return linear(gelu_tanh_mul(x) if gelu else silu_mul(x), w, None)


def norm_argmax(x: Tensor, norm: Tensor, eps: float, w: Tensor) -> Tensor:
    """x (R, K) -> ids (R,) int32: the lowest id of the maxima, -1 for a row without a finite maximum."""
    logits = linear(rms_norm(x, norm, eps), w, None)
    top = logits.amax(-1)  # NaN if any is
    ids = (logits == top[:, None]).to(torch.int8).argmax(-1)  # the first of several
    return torch.where(top.isfinite(), ids, -1).to(torch.int32)

"""Gated activations on the CPU. The first half of the columns is the gate."""

from __future__ import annotations

from torch import Tensor
from torch.utils.dlpack import to_dlpack

from headrace import _kernels


def silu_mul(x: Tensor) -> Tensor:
    """x (T, 2F) -> (T, F)."""
    out = x.new_empty(x.shape[0], x.shape[1] // 2)
    _kernels.silu_mul(to_dlpack(x.contiguous()), to_dlpack(out))
    return out


def gelu_tanh_mul(x: Tensor) -> Tensor:
    """x (T, 2F) -> (T, F)."""
    out = x.new_empty(x.shape[0], x.shape[1] // 2)
    _kernels.gelu_tanh_mul(to_dlpack(x.contiguous()), to_dlpack(out))
    return out

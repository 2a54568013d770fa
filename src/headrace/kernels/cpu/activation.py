"""Gated activations on the CPU. The first half of the columns is the gate."""

from __future__ import annotations

from torch import Tensor
from torch.utils.dlpack import to_dlpack

from headrace import _kernels

from ..workspace import empty, rows_of


def silu_mul(x: Tensor) -> Tensor:
    """x (T, 2F) -> (T, F)."""
    out = empty(x.shape[0], x.shape[1] // 2)
    _kernels.silu_mul(to_dlpack(rows_of(x)), to_dlpack(out))
    return out


def gelu_tanh_mul(x: Tensor) -> Tensor:
    """x (T, 2F) -> (T, F)."""
    out = empty(x.shape[0], x.shape[1] // 2)
    _kernels.gelu_tanh_mul(to_dlpack(rows_of(x)), to_dlpack(out))
    return out


def axpy(x: Tensor, factor: float, other: Tensor | None) -> Tensor:
    """x (T, D) times ``factor``, plus ``other`` where given."""
    out = empty(*x.shape)
    added = None if other is None else to_dlpack(rows_of(other))
    _kernels.axpy(to_dlpack(rows_of(x)), factor, added, to_dlpack(out))
    return out

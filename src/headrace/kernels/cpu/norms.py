"""Root-mean-square norms on the CPU."""

from __future__ import annotations

from torch import Tensor
from torch.utils.dlpack import to_dlpack

from headrace import _kernels

from ..workspace import empty, rows_of


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x (..., D) -> like x; any leading shape is a list of rows."""
    rows = rows_of(x)
    if x.dim() != 2:
        rows = rows.view(-1, x.shape[-1])
    out = empty(*rows.shape)
    _kernels.rms_norm(to_dlpack(rows), to_dlpack(weight), eps, to_dlpack(out))
    return out.view(x.shape) if x.dim() != 2 else out


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x, residual (T, D) -> (normed sum, sum), both new."""
    x, residual = rows_of(x), rows_of(residual)
    out, total = empty(*x.shape), empty(*x.shape)
    arrays = to_dlpack(x), to_dlpack(residual), to_dlpack(weight)
    _kernels.add_rms_norm(*arrays, eps, to_dlpack(out), to_dlpack(total))
    return out, total

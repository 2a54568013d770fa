"""Matrix products on the CPU whose rows are made on the way in, or whose outputs are reduced on the way out.

Each gives the bits of the ops it stands for, called one after another; what it saves is passes over memory.
"""

from __future__ import annotations

from torch import Tensor
from torch.utils.dlpack import to_dlpack

from headrace import _kernels
from headrace._kernels import Weight

from ..workspace import empty, empty_ids, rows_of


def norm_linear(
    x: Tensor, residual: Tensor | None, norm: Tensor, eps: float, w: Weight, bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """x, residual (T, K) -> ((T, N), their sum (T, K)); see ``Ops.norm_linear``."""
    x = rows_of(x)
    out, total = empty(x.shape[0], w.n), x
    added = summed = None
    if residual is not None:
        total = empty(*x.shape)
        added, summed = to_dlpack(rows_of(residual)), to_dlpack(total)
    biased = None if bias is None else to_dlpack(bias)
    _kernels.norm_linear(to_dlpack(x), added, to_dlpack(norm), eps, w, biased, summed, to_dlpack(out))
    return out, total


def gated_linear(x: Tensor, gelu: bool, w: Weight) -> Tensor:
    """x (T, 2K), gate first -> (T, N)."""
    out = empty(x.shape[0], w.n)
    _kernels.gated_linear(to_dlpack(rows_of(x)), gelu, w, to_dlpack(out))
    return out


def norm_argmax(x: Tensor, norm: Tensor, eps: float, w: Weight) -> Tensor:
    """x (R, K) -> ids (R,) int32; -1 for a row without a finite maximum."""
    out = empty_ids(x.shape[0])
    _kernels.norm_argmax(to_dlpack(rows_of(x)), to_dlpack(norm), eps, w, to_dlpack(out))
    return out

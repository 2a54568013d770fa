"""Weight matrices on the CPU: packed once into column panels, float32.

Other storage (int8, 4-bit) belongs behind the same three functions, as further kinds of packed matrix.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.dlpack import to_dlpack

from headrace import _kernels
from headrace._kernels import PackedMatrix


def pack_weight(w: Tensor) -> PackedMatrix:
    """w (N, K) of any float dtype -> a packed copy."""
    return PackedMatrix(to_dlpack(w.detach().to(torch.float32).contiguous()))


def linear(x: Tensor, w: PackedMatrix, bias: Tensor | None) -> Tensor:
    """x (T, K) -> (T, N)."""
    out = x.new_empty(x.shape[0], w.n)
    _kernels.linear(to_dlpack(x.contiguous()), w, None if bias is None else to_dlpack(bias), to_dlpack(out))
    return out


def embedding(ids: Tensor, w: PackedMatrix) -> Tensor:
    """ids (T,) int32 -> (T, K)."""
    out = torch.empty(ids.shape[0], w.k)
    _kernels.embedding(to_dlpack(ids), w, to_dlpack(out))
    return out

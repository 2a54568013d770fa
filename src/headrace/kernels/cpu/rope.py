"""Rotary position embedding on the CPU."""

from __future__ import annotations

from torch import Tensor
from torch.utils.dlpack import to_dlpack

from headrace import _kernels

from ..workspace import empty, rows_of


def rope(q: Tensor, k: Tensor, positions: Tensor, table: Tensor, interleaved: bool) -> tuple[Tensor, Tensor]:
    """Rotate q (T, Hq, D) and k (T, Hkv, D) by the angles of their positions (T,)."""
    return _rotate(q, positions, table, interleaved), _rotate(k, positions, table, interleaved)


def _rotate(x: Tensor, positions: Tensor, table: Tensor, interleaved: bool) -> Tensor:
    x = rows_of(x)
    out = empty(*x.shape)
    _kernels.rope(to_dlpack(x), to_dlpack(positions), to_dlpack(table), interleaved, to_dlpack(out))
    return out

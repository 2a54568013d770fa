"""Weight matrices on the CPU: packed once into column panels, each part in the storage it came in.

Blocks of 4 to 8 bits stay integers and meet activations rounded to int8; bfloat16 and float32 meet float32
activations, exactly as a float32 copy would.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.dlpack import to_dlpack

from headrace import _kernels
from headrace._kernels import Weight

from ..quant import QuantRows, Stored, parts_of
from ..workspace import empty, rows_of


def pack_weight(stored: Stored) -> Weight:
    """(N, K), or parts that stack to it -> a packed copy."""
    parts = parts_of(stored)
    first = parts[0]
    weight = Weight(first.k if isinstance(first, QuantRows) else first.shape[1])
    for part in parts:
        _append(weight, part)
    return weight


def _append(weight: Weight, part: Tensor | QuantRows) -> None:
    if isinstance(part, QuantRows):
        weight.append_blocks(part.kind, part.data)
        return
    part = part.detach().contiguous()
    bfloat16 = _as_bfloat16(part)
    if bfloat16 is None:
        weight.append_floats(to_dlpack(part.to(torch.float32)))
    else:
        weight.append_bfloat16(to_dlpack(bfloat16.view(torch.uint16)))


def _as_bfloat16(part: Tensor) -> Tensor | None:
    """``part`` in bfloat16 when it is stored in 16 bits and loses nothing; what is stored wider stays so."""
    if part.dtype == torch.bfloat16:
        return part
    if part.dtype != torch.float16:
        return None
    rounded = part.to(torch.bfloat16)
    return rounded if torch.equal(rounded.to(torch.float32), part.to(torch.float32)) else None


def linear(x: Tensor, w: Weight, bias: Tensor | None) -> Tensor:
    """x (T, K) -> (T, N)."""
    out = empty(x.shape[0], w.n)
    _kernels.linear(to_dlpack(rows_of(x)), w, None if bias is None else to_dlpack(bias), to_dlpack(out))
    return out


def embedding(ids: Tensor, w: Weight) -> Tensor:
    """ids (T,) int32 -> (T, K)."""
    out = empty(ids.shape[0], w.k)
    _kernels.embedding(to_dlpack(ids), w, to_dlpack(out))
    return out


def gather_rows(x: Tensor, rows: Tensor) -> Tensor:
    """x (T, D), rows (R,) int32 -> (R, D)."""
    out = empty(rows.shape[0], x.shape[1])
    _kernels.gather_rows(to_dlpack(rows_of(x)), to_dlpack(rows), to_dlpack(out))
    return out

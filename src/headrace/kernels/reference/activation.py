"""Gated activations in torch. The first half of the columns is the gate."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def silu_mul(x: Tensor) -> Tensor:
    """x (T, 2F) -> (T, F): ``silu(gate) * up``."""
    gate, up = x.chunk(2, -1)
    return F.silu(gate) * up


def gelu_tanh_mul(x: Tensor) -> Tensor:
    """x (T, 2F) -> (T, F): ``gelu(gate) * up`` with the tanh approximation of gelu."""
    gate, up = x.chunk(2, -1)
    return F.gelu(gate, approximate="tanh") * up


def axpy(x: Tensor, factor: float, other: Tensor | None) -> Tensor:
    """x (T, D) times ``factor``, plus ``other`` where given."""
    scaled = x * factor
    return scaled if other is None else scaled + other

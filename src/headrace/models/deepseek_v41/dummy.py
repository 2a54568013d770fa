"""Synthetic V4.1 weights from a configuration alone, in the storage of the released layout. For tests and for measuring
a shape, never for quality.

Codes and scales are drawn so that every matrix keeps the variance of its input; scales differ from tile to tile.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from headrace.models.weights.dummy import DummyCheckpoint, dummy_tensor

from .quantise import encode_e4m3
from .tensor_table import BF16, F32, FP4, FP8, Stored, Table

E2M1_DEVIATION = 2.93  # of codes drawn evenly
EXPONENT_BIAS = 127


class DummyTensors:
    """A ``RawCheckpoint`` of the tensors of a table. Each is a function of (seed, name, shape)."""

    def __init__(self, checkpoint: DummyCheckpoint, table: Table) -> None:
        self.source = checkpoint.source
        self._seed, self._table = checkpoint.seed, table

    def names(self) -> tuple[str, ...]:
        return tuple(self._table)

    def stored_as(self, name: str) -> tuple[str, tuple[int, ...]]:
        stored = self._table[name]
        return stored.kind, stored.shape

    def where(self, _: str) -> str:
        return self.source

    def raw(self, name: str) -> Tensor:
        stored = self._table[name]
        if stored.kind in (F32, BF16):
            values = dummy_tensor(self._seed, name, stored.shape)
            return values if stored.kind == F32 else values.to(torch.bfloat16)
        if stored.kind == FP8:
            return encode_e4m3(self._normal(name, stored)).view(torch.float8_e4m3fn)
        if stored.kind == FP4:
            return self._noise(name, stored.shape, 256).to(torch.uint8).view(torch.int8)
        weight = self._table[f"{name.removesuffix('.scale')}.weight"]
        around = self._noise(name, stored.shape, 3) - 1 + _exponent(weight) + EXPONENT_BIAS
        return around.to(torch.uint8).view(torch.float8_e8m0fnu)

    def _normal(self, name: str, stored: Stored) -> Tensor:
        return dummy_tensor(self._seed, name, stored.shape) * math.sqrt(stored.shape[-1])

    def _noise(self, name: str, shape: tuple[int, ...], count: int) -> Tensor:
        """Whole numbers below ``count``, evenly."""
        evenly = torch.special.ndtr(dummy_tensor(self._seed, name, shape) * math.sqrt(shape[-1]))
        return (evenly * count).floor().clamp(max=count - 1).to(torch.int64)


def _exponent(weight: Stored) -> int:
    """Of the scale that gives a matrix of these codes the variance 1 / columns."""
    columns = weight.shape[1] * (2 if weight.kind == FP4 else 1)
    deviation = E2M1_DEVIATION if weight.kind == FP4 else 1.0
    return -round(math.log2(deviation * math.sqrt(columns)))

"""A checkpoint whose matrices are stored in blocks, several kinds mixed: for parity on the integer path."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, quants
from torch import Tensor

from headrace.kernels.quant import QuantRows
from headrace.models.weights import Checkpoint

KINDS = ("Q4_0", "Q4_1", "Q5_0", "Q8_0")


@dataclass
class Quantised:
    """``base`` with every matrix of whole blocks rounded to a kind that its name picks."""

    base: Checkpoint

    @property
    def source(self) -> str:
        return self.base.source

    @property
    def config(self) -> dict[str, Any]:
        return self.base.config

    def names(self) -> tuple[str, ...]:
        return self.base.names()

    def expect(self, shapes: Any) -> None:
        self.base.expect(shapes)

    def stored(self, name: str) -> Tensor | QuantRows:
        tensor = self.base.tensor(name)
        if tensor.dim() != 2 or tensor.shape[1] % 32:
            return tensor
        kind = KINDS[zlib.crc32(name.encode()) % len(KINDS)]
        data = quants.quantize(tensor.numpy(), GGMLQuantizationType[kind])
        return QuantRows(kind, *tensor.shape, np.ascontiguousarray(data))

    def tensor(self, name: str) -> Tensor:
        stored = self.stored(name)
        return stored.dequantise() if isinstance(stored, QuantRows) else stored

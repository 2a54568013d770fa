"""QuantRows: weight rows in the block formats of GGUF, exactly as a file stores them. Never rounds anything.

A block is a run of small integers with a scale, in some formats also a minimum; the formats are those of the
ggml project. What a backend makes of the rows is its own business: the CPU repacks them for integer kernels,
the reference dequantises.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from torch import Tensor

from headrace.contract.errors import ModelError

KINDS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")

# Bytes of 32 values once the CPU has packed them: codes of 4 or 8 bits with their scales and minima. More than the file
# holds where codes of 5 or 6 bits get a byte each, or scales become float32.
PACKED_BYTES = {"Q4_0": 18, "Q4_1": 20, "Q5_0": 34, "Q5_1": 36, "Q8_0": 34, "Q4_K": 24, "Q5_K": 40, "Q6_K": 40}

# Dequantising makes several float temporaries; slabs keep them small beside the result.
SLAB_VALUES = 1 << 22


@dataclass(frozen=True, slots=True, eq=False)
class QuantRows:
    """``n`` rows of ``k`` values in blocks of ``kind`` (one of ``KINDS``).

    data: (n, bytes per row) uint8, not to be changed afterwards; may be a view of a mapped file.
    Errors: ModelError for an unknown kind, a ``k`` that is no whole number of blocks, or data of another size.
    """

    kind: str
    n: int
    k: int
    data: np.ndarray

    def __post_init__(self) -> None:
        expected = (self.n, row_bytes(self.kind, self.k))
        if self.data.dtype != np.uint8 or self.data.shape != expected:
            raise ModelError(
                f"{self.kind} blocks", f"data {self.data.dtype} {self.data.shape}, expected uint8 {expected}"
            )

    def rows(self, index: np.ndarray) -> QuantRows:
        """The rows of ``index``, in its order. A copy."""
        return QuantRows(self.kind, len(index), self.k, self.data[index])

    def dequantise(self) -> Tensor:
        """(n, k) float32: scale * integer, plus the minimum where there is one, each rounded once."""
        out = np.empty((self.n, self.k), np.float32)
        step = max(1, SLAB_VALUES // self.k)
        for row in range(0, self.n, step):
            out[row : row + step] = dequantize(self.data[row : row + step], GGMLQuantizationType[self.kind])
        return torch.from_numpy(out)


# What ``Ops.pack_weight`` takes: one matrix, or several with the same number of columns, stacked by rows.
Stored = Tensor | QuantRows | Sequence[Tensor | QuantRows]


def block_values(kind: str) -> int:
    """Values in one block: a row holds a whole number of blocks. Errors: ModelError."""
    return _block(kind)[0]


def row_bytes(kind: str, k: int) -> int:
    """Bytes of one row of ``k`` values. Errors: ModelError."""
    values, size = _block(kind)
    if k <= 0 or k % values:
        raise ModelError(f"{kind} blocks", f"hold {values} values each, which {k} columns are no multiple of")
    return k // values * size


def packed_bytes(kind: str, values: int) -> int:
    """Least bytes of ``values`` numbers in blocks of ``kind`` once packed: rows that pad the last panel not counted."""
    return values // 32 * PACKED_BYTES[kind]


def _block(kind: str) -> tuple[int, int]:
    if kind not in KINDS:
        raise ModelError(f"{kind} blocks", f"are not known; known: {', '.join(KINDS)}")
    values, size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    return int(values), int(size)


def parts_of(stored: Stored) -> list[Tensor | QuantRows]:
    """The matrices of ``stored`` in order. Errors: ModelError when there are none or their columns differ."""
    parts = [stored] if isinstance(stored, Tensor | QuantRows) else list(stored)
    columns = {part.k if isinstance(part, QuantRows) else part.shape[1] for part in parts}
    if len(columns) != 1:
        raise ModelError("weight", f"parts need one number of columns, have {sorted(columns) or 'no parts'}")
    return parts

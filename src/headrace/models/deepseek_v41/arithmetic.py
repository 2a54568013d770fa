"""The three arithmetic modes of the family. Says what is rounded where; rounds nothing that a cache rounds.

| mode | activations | inputs of 4- and 8-bit linears | index scores |
|---|---|---|---|
| ``float32`` | float32 | as they are | float32 |
| ``float32+actq`` | float32 | e4m3 per 32 columns | float32 |
| ``bfloat16`` | rounded where the trained program stores bfloat16 | e4m3 per 32 columns | bfloat16 |

What caches hold is rounded in all three: that belongs to the model. The input of the grouped output projection
(``wo_a``) is never rounded to 8 bits: of two published readings this is the one of the model's authors.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from headrace.contract.errors import ConfigError
from headrace.kernels.ops import Ops, Weight

from .quantise import round_mxfp8
from .tensor_ops import bfloat16

MODES = ("float32", "float32+actq", "bfloat16")


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """One mode over one backend's ops."""

    ops: Ops
    mode: str = "float32"

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ConfigError("mode", f"{self.mode!r} is unknown; choose one of {', '.join(MODES)}")

    @property
    def rounds_scores(self) -> bool:
        """Whether index scores are bfloat16."""
        return self.mode == "bfloat16"

    def stored(self, x: Tensor) -> Tensor:
        """An activation as it is kept."""
        return bfloat16(x) if self.mode == "bfloat16" else x

    def linear(self, x: Tensor, w: Weight) -> Tensor:
        """A bfloat16 or float32 matrix: (T, K) -> (T, N), kept."""
        return self.stored(self.ops.linear(x.contiguous(), w, None))

    def exact_linear(self, x: Tensor, w: Weight) -> Tensor:
        """The same where the result stays float32 in every mode."""
        return self.ops.linear(x.contiguous(), w, None)

    def coded(self, x: Tensor) -> Tensor:
        """The input of 4- and 8-bit matrices: rounded once where several read it."""
        return x if self.mode == "float32" else round_mxfp8(x)

    def coded_linear(self, x: Tensor, w: Weight) -> Tensor:
        """A 4- or 8-bit matrix, from an input as it is."""
        return self.linear(self.coded(x), w)

    def norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return self.stored(self.ops.rms_norm(x.contiguous(), weight, eps))

"""The weights in training: float32 leaves under the names of the released layout, seen as the file will hold them.

Every use rounds to the stored format and lets gradients through as if it had not, so that what is trained is what is
served. Holds no forward; ``stored`` is the only way out.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from headrace.models.deepseek_v41 import quantise
from headrace.models.deepseek_v41.config import V41Config
from headrace.models.deepseek_v41.tensor_table import BF16, F32, FP4, FP8, Stored, Table

STREAM_LEANING = 3.0  # how far each stream at first stays with itself, before the softmax
MIX_SCALE = 0.1  # of what the mixing weights at first take from the trunk
DAMPED = ("wo_b.weight", "w2.weight", "aligner.w2.weight")  # what is added to the trunk starts small


class TrainedWeights:
    """``leaves``: name -> float32 tensor, packed matrices at their full width, no scales.

    ``rounds``: whether values are seen rounded; most of a training needs no more than its last part to do so.
    """

    def __init__(self, table: Table, leaves: dict[str, Tensor]) -> None:
        self.table, self.leaves = table, leaves
        self.rounds = True

    def __call__(self, name: str) -> Tensor:
        """A tensor as it will be served, with gradients to its leaf."""
        leaf, kind = self.leaves[name], self.table[name].kind
        return leaf if kind == F32 else self.through(leaf, _rounding(name, kind))

    def rows(self, name: str, numbers: Tensor) -> Tensor:
        """(n, columns): rows of a table; only these are rounded."""
        picked = torch.nn.functional.embedding(numbers, self.leaves[name])
        return self.through(picked, _rounding(name, self.table[name].kind))

    def through(self, x: Tensor, rounding: Callable[[Tensor], Tensor]) -> Tensor:
        """``rounding(x)`` forward, ``x`` backward."""
        return x + (rounding(x.detach()) - x.detach()) if self.rounds else x

    def stored(self) -> dict[str, Tensor]:
        """Every tensor of the layout in its own type, scales included."""
        tensors: dict[str, Tensor] = {}
        for name, leaf in self.leaves.items():
            tensors |= _encoded(name, leaf.detach(), self.table[name].kind)
        return tensors

    def parameters(self) -> int:
        return sum(leaf.numel() for leaf in self.leaves.values())


def fresh_weights(config: V41Config, table: Table, seed: int) -> TrainedWeights:
    """Starting values, a function of the seed alone."""
    generator = torch.Generator().manual_seed(seed)
    leaves = {}
    for name, stored in table.items():
        if not name.endswith(".scale"):
            leaves[name] = _start(config, name, _full_shape(stored), generator)
    return TrainedWeights(table, leaves)


def _full_shape(stored: Stored) -> tuple[int, ...]:
    if stored.kind == FP4:
        return stored.shape[0], 2 * stored.shape[1]
    return stored.shape


def _start(config: V41Config, name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    if name.endswith("_base"):
        return _mix_start(config.streams, generator)
    if "hc_" in name and name.endswith("_scale"):
        return torch.full(shape, MIX_SCALE)
    if name.endswith(("norm.weight", "norm1.weight", "norm2.weight", "q_weight", "k_weight")):
        return torch.ones(shape)
    if len(shape) == 1:
        return torch.zeros(shape)
    drawn = torch.randn(shape, generator=generator)
    if name.endswith("embed.weight"):
        return drawn * (0.5 if name == "embed.weight" else 0.1)
    return drawn * shape[-1] ** -0.5 * (0.4 if name.endswith(DAMPED) else 1.0)


def _mix_start(streams: int, generator: torch.Generator) -> Tensor:
    """Streams that read and write differently from the start: equal ones would stay equal."""
    leaning = STREAM_LEANING * torch.eye(streams)
    vectors = torch.randn(2, streams, generator=generator)
    return torch.cat((vectors.flatten(), leaning.flatten()))


# -- as the file holds them -------------------------------------------------------------------------------------------


def _encoded(name: str, x: Tensor, kind: str) -> dict[str, Tensor]:
    if kind == F32:
        return {name: x.clone()}
    if kind == BF16:
        return {name: x.to(torch.bfloat16)}
    codes, scales = _codes(name, x, kind)
    word = torch.float8_e4m3fn if kind == FP8 else torch.int8
    scale_name = f"{name.removesuffix('.weight')}.scale"
    return {name: codes.view(word), scale_name: scales.contiguous().view(torch.float8_e8m0fnu)}


def _codes(name: str, x: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    if kind == FP4:
        return quantise.pack_mxfp4(x)
    if is_row_table(name):
        columns = x.shape[-1]
        packed = quantise.pack_mxfp8(x)
        return packed[..., :columns].contiguous(), packed[..., columns:]
    return fp8_tile_codes(x)


def is_row_table(name: str) -> bool:
    """Engram's tables have a scale per row, other 8-bit matrices one per tile."""
    return name.endswith("engram.embed.weight")


def fp8_tile_codes(x: Tensor) -> tuple[Tensor, Tensor]:
    """e4m3 bytes (n, k) and one ue8m0 byte per 32 x 32 tile: the inverse of ``quantise.fp8_tiles``."""
    size = quantise.MX_COLUMNS
    rows, columns = (math.ceil(n / size) * size for n in x.shape)
    padded = torch.nn.functional.pad(x, (0, columns - x.shape[1], 0, rows - x.shape[0]))
    tiles = padded.unflatten(1, (-1, size)).unflatten(0, (-1, size))  # (n / 32, 32, k / 32, 32)
    largest = tiles.abs().amax((1, 3)).clamp(min=quantise.LEAST_E4M3)
    scale = quantise.power_of_two_above(largest / quantise.E4M3_MAX)
    codes = quantise.encode_e4m3(tiles / quantise.power_of_two(scale)[:, None, :, None])
    return codes.flatten(2).flatten(0, 1)[: x.shape[0], : x.shape[1]].contiguous(), scale


def _rounding(name: str, kind: str) -> Callable[[Tensor], Tensor]:
    if kind == BF16:
        return lambda x: x.to(torch.bfloat16).to(torch.float32)
    if kind == FP4:
        return lambda x: quantise.unpack_mxfp4(*quantise.pack_mxfp4(x))
    return quantise.round_mxfp8 if is_row_table(name) else lambda x: quantise.fp8_tiles(*fp8_tile_codes(x))

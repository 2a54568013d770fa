"""Pictures as rows: the vision tower, the aligner, and where their rows go in a prompt. Reads no picture files.

A picture is a grid of patches, and all of them see each other. Rows and columns are told apart by rotary positions:
half of a head's pairs turn with the row, half with the column.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.contract.picture import END, IMAGE, NEWLINE, START, Eyes, Picture
from headrace.kernels.ops import Ops

from .arithmetic import Arithmetic
from .config import V41Config
from .config_parts import VisionConfig
from .params import BiasedParams, VisionBlockParams, VisionParams
from .tensor_ops import silu

NORM_EPS, THETA = 1e-6, 10000.0
MEAN = DEVIATION = 0.5  # of what pixels are normalised by
TEXT = -1


class Tower:
    """The eyes of a model (``HasEyes``), with or without the rest of it."""

    def __init__(self, config: V41Config, params: VisionParams, arithmetic: Arithmetic) -> None:
        """``arithmetic``: over the ops that packed ``params``."""
        self._config, self._params, self._arithmetic = config, params, arithmetic
        vision = config.vision
        self.eyes = Eyes(
            config.image_id,
            vision.patch,
            vision.downsample,
            vision.max_tokens,
            vision.min_pixels,
            vision.max_wh_ratio,
        )

    def picture_rows(self, picture: Picture) -> Tensor:
        """(rows, hidden): features of its cells, and the learnt marks around them."""
        kinds = torch.tensor(list(picture.kinds))
        patches = normalised_patches(picture, self._config.vision.patch)
        features = picture_features(self._arithmetic.ops, self._config, self._params, patches, picture.grid)
        blank = torch.zeros(len(kinds), self._config.hidden_size)
        return self._arithmetic.stored(place_picture(blank, kinds, features, self._params))


def picture_features(
    ops: Ops, config: V41Config, params: VisionParams, patches: Tensor, grid: tuple[int, int]
) -> Tensor:
    """Normalised patches (rows * columns, 3, p, p) of one picture, row major -> (n, hidden), one per image token.

    An image token covers ``downsample`` x ``downsample`` patches; the grid is filled up with zeros below and right.
    """
    vision = config.vision
    x = _linear(ops, patches.flatten(1), params.patches)
    cos, sin = _rotation(vision, grid)
    for block in params.blocks:
        x = x + _attention(ops, vision, block, ops.rms_norm(x, block.attention_norm, NORM_EPS), cos, sin)
        x = x + _mlp(ops, block, ops.rms_norm(x, block.mlp_norm, NORM_EPS))
    joined = _join(ops.rms_norm(x, params.norm, NORM_EPS), grid, vision.downsample)
    return _linear(ops, torch.nn.functional.gelu(_linear(ops, joined, params.align_in)), params.align_out)


def normalised_patches(picture: Picture, patch: int) -> Tensor:
    """(patches, 3, p, p) float32, row major."""
    down, across = picture.grid
    pixels = torch.frombuffer(bytearray(picture.pixels), dtype=torch.uint8).view(down, patch, across, patch, 3)
    values = (pixels.to(torch.float32) / 255.0 - MEAN) / DEVIATION
    return values.permute(0, 2, 4, 1, 3).reshape(down * across, 3, patch, patch)


def place_picture(rows: Tensor, types: Tensor, features: Tensor, params: VisionParams) -> Tensor:
    """Embedded rows (T, hidden) with those of a picture, told by ``types`` (T,), replaced: features in their order."""
    placed = rows.clone()
    placed[types == IMAGE] = features
    for mark, kind in zip(params.marks, (START, NEWLINE, END)):
        placed[types == kind] = mark
    return placed


def _linear(ops: Ops, x: Tensor, params: BiasedParams) -> Tensor:
    return ops.linear(x.contiguous(), params.weight, params.bias)


def _rotation(vision: VisionConfig, grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Cosines and sines (patches, head_dim / 2): half of the pairs turn with the row, half with the column."""
    quarter = vision.hidden // vision.num_heads // 4
    frequencies = THETA ** (-torch.arange(quarter, dtype=torch.float32) / quarter)
    rows, columns = (axis.flatten() for axis in torch.meshgrid(*map(torch.arange, grid), indexing="ij"))
    angles = torch.cat([torch.outer(axis.float(), frequencies) for axis in (rows, columns)], dim=1)
    return angles.cos(), angles.sin()


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """(patches, heads, head_dim): pairs (i, i + head_dim / 2)."""
    a, b = x.chunk(2, dim=-1)
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def _attention(ops: Ops, vision: VisionConfig, block: VisionBlockParams, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    qkv = _linear(ops, x, block.qkv).view(len(x), 3, vision.num_heads, -1)
    query, key, value = _rotate(qkv[:, 0], cos, sin), _rotate(qkv[:, 1], cos, sin), qkv[:, 2]
    heads = [_head(ops, query[:, h], key[:, h], value[:, h]) for h in range(vision.num_heads)]
    return _linear(ops, torch.cat(heads, dim=1), block.out)


def _head(ops: Ops, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """(patches, head_dim) each; every patch sees every patch."""
    scores = ops.linear(query.contiguous(), ops.pack_weight(key.contiguous()), None) * query.shape[1] ** -0.5
    weights = torch.softmax(scores, dim=1)
    return ops.linear(weights, ops.pack_weight(value.t().contiguous()), None)


def _mlp(ops: Ops, block: VisionBlockParams, x: Tensor) -> Tensor:
    gate, up = ops.linear(x, block.gate_up, None).chunk(2, dim=1)
    return ops.linear((silu(gate) * up).contiguous(), block.down, None)


def _join(x: Tensor, grid: tuple[int, int], by: int) -> Tensor:
    """(rows * columns, width) -> (tokens, width * by * by): features channel major, then down, then across."""
    rows, columns = (-(-side // by) for side in grid)
    padded = torch.zeros(rows * by, columns * by, x.shape[1])
    padded[: grid[0], : grid[1]] = x.view(*grid, -1)
    cells = padded.view(rows, by, columns, by, -1).permute(0, 2, 4, 1, 3)
    return cells.reshape(rows * columns, -1)

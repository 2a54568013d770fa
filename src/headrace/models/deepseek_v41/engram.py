"""Engram: what a token's last n-grams recall from hashed tables, gated into every stream of the trunk.

Only the rows asked for are read from the mapped tables. Rows of images are left as they are.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .engram_hash import table_rows
from .params import EngramParams
from .quantise import fp8_rows
from .step import Step
from .tensor_ops import row_sum, sigmoid

LEAST_DOT = 1e-6


def recall(step: Step, params: EngramParams) -> Tensor:
    """(T, width): the table rows of each token's n-grams, side by side."""
    assert step.config.engram is not None
    rows = table_rows(step.grams, params.hash, step.config.engram.num_heads)
    return fp8_rows(params.table[rows].flatten(0, 1), params.scales[rows].flatten(0, 1)).view(len(rows), -1)


def add_engram(step: Step, params: EngramParams, trunk: Tensor) -> Tensor:
    """(T, m, hidden) -> the same with ``gate_s * value`` added to stream s of every row that is no image."""
    arithmetic, config = step.arithmetic, step.config
    projected = arithmetic.coded_linear(recall(step, params), params.project)
    keys, value = projected.split((config.streams * config.hidden_size, config.hidden_size), dim=1)
    ones, eps = torch.ones(config.hidden_size), config.norm_eps
    normed_trunk = arithmetic.ops.rms_norm(trunk.contiguous(), ones, eps)
    normed_keys = arithmetic.ops.rms_norm(keys.unflatten(1, (config.streams, -1)).contiguous(), ones, eps)
    dot = row_sum(normed_trunk * normed_keys * params.gate) * config.hidden_size**-0.5
    gate = sigmoid(dot.sign() * dot.abs().clamp(min=LEAST_DOT).sqrt())
    gate = gate.masked_fill(step.image_rows.unsqueeze(1), 0.0)
    return arithmetic.stored(trunk + gate.unsqueeze(2) * value.unsqueeze(1))

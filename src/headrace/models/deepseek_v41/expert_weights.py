"""One expert's weights as bytes that can travel to another rank. Exact: what arrives computes the same bits."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.kernels.ops import Ops

from .config import V41Config
from .params import ExpertParams


def expert_bytes(config: V41Config) -> int:
    """Bytes of one routed expert in bfloat16."""
    return 2 * 3 * config.moe.inner * config.hidden_size


def pack_expert(ops: Ops, expert: ExpertParams, config: V41Config) -> Tensor:
    """(bytes,) uint8: gate rows, up rows, down rows, each weight as bfloat16. Loading has seen to it that all fit."""
    parts = []
    for weight, num_rows in ((expert.gate_up, 2 * config.moe.inner), (expert.down, config.hidden_size)):
        rows = ops.embedding(torch.arange(num_rows, dtype=torch.int32), weight)
        parts.append(rows.to(torch.bfloat16).flatten())
    return torch.cat(parts).view(torch.uint8)


def unpack_expert(ops: Ops, data: Tensor, config: V41Config) -> ExpertParams:
    """The opposite of ``pack_expert``."""
    values, inner, hidden = data.contiguous().view(torch.bfloat16), config.moe.inner, config.hidden_size
    gate, up, down = values.split(inner * hidden)
    gate_up = ops.pack_weight([gate.view(inner, hidden), up.view(inner, hidden)])
    return ExpertParams(gate_up, ops.pack_weight(down.view(hidden, inner)))

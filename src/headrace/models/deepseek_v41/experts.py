"""The expert sub-layer: a gate chooses few of many small MLPs per token, and one shared MLP sees every token.

A token's contributions are added in the order of expert numbers, then the shared one's: the sum does not depend on
who else is in the batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .arithmetic import Arithmetic
from .config_parts import MoEConfig
from .params import ExpertParams, MoEParams
from .step import Program
from .tensor_ops import silu, softplus, sum_over

LEAST_SUM = 1e-20


def choose_experts(logits: Tensor, bias: Tensor, moe: MoEConfig) -> tuple[Tensor, Tensor]:
    """Gate logits (T, experts), bias (T, experts) -> expert numbers, ascending, and weights, both (T, chosen).

    Chosen by sqrt(softplus) plus bias, ties to the lower number; weighted without the bias.
    """
    score = softplus(logits).sqrt()
    ranked = (score + bias).sort(dim=1, descending=True, stable=True).indices
    chosen = ranked[:, : moe.num_chosen].sort(dim=1).values
    picked = score.gather(1, chosen)
    total = sum_over(picked, 1).unsqueeze(1) + LEAST_SUM
    return chosen, moe.scaling * picked / total


def experts(step: Program, params: MoEParams, moe: MoEConfig, hidden: Tensor, image_rows: Tensor) -> Tensor:
    """(T, hidden), normed -> (T, hidden)."""
    arithmetic, limit = step.arithmetic, step.config.swiglu_limit
    bias = torch.where(image_rows.unsqueeze(1), params.image_bias, params.bias)
    chosen, weights = choose_experts(arithmetic.exact_linear(hidden, params.gate), bias, moe)
    out = torch.zeros_like(hidden)
    for number in chosen.unique().tolist():
        rows, place = (chosen == number).nonzero(as_tuple=True)
        out[rows] += _expert(arithmetic, params.experts[number], hidden[rows], weights[rows, place], limit)
    return arithmetic.stored(out + _expert(arithmetic, params.shared, hidden, None, limit))


def _expert(arithmetic: Arithmetic, expert: ExpertParams, x: Tensor, weight: Tensor | None, limit: float) -> Tensor:
    """The token's weight is multiplied in before the second product, and so before its input's rounding."""
    gate, up = arithmetic.coded_linear(x, expert.gate_up).chunk(2, dim=1)
    inner = silu(gate.clamp(max=limit)) * up.clamp(-limit, limit)
    if weight is not None:
        inner = inner * weight.unsqueeze(1)
    return arithmetic.coded_linear(arithmetic.stored(inner), expert.down)

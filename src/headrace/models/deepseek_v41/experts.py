"""The expert sub-layer: a gate chooses few of many small MLPs per token, and one shared MLP sees every token.

A token's contributions are added in the order of expert numbers, then the shared one's: the sum does not depend on
who else is in the batch. Who computes the chosen ones is behind ``RoutedExperts``: this rank, or the ranks of a group.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from .arithmetic import Arithmetic
from .config_parts import MoEConfig
from .params import ExpertParams, MoEParams
from .tensor_ops import silu, softplus, sum_over

if TYPE_CHECKING:
    from .step import Program

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


class RoutedExperts(Protocol):
    """Who computes what tokens chose."""

    def step(self) -> AbstractContextManager[None]:
        """Around all layers of a step."""
        ...

    def run(
        self, program: Program, layer: int, params: MoEParams, hidden: Tensor, chosen: Tensor, weights: Tensor
    ) -> Tensor:
        """hidden (T, hidden) as inputs of 4-bit matrices are, chosen (T, k) int64 ascending, weights (T, k) ->
        (T, hidden): contributions added in the order of ``chosen``."""
        ...

    def company(self, program: Program) -> None:
        """A step of other ranks, to which this one adds no rows."""
        ...


class LocalExperts:
    """All experts are here."""

    def step(self) -> AbstractContextManager[None]:
        return nullcontext()

    def run(
        self, program: Program, layer: int, params: MoEParams, hidden: Tensor, chosen: Tensor, weights: Tensor
    ) -> Tensor:
        del layer
        out, limit = torch.zeros_like(hidden), program.config.swiglu_limit
        if len(hidden) == 1:  # a lone row needs no gathering
            for number, weight in zip(chosen[0].tolist(), weights[0].split(1)):
                out += run_expert(program.arithmetic, params.experts[number], hidden, weight, limit)
            return out
        for number in chosen.unique().tolist():
            rows, place = (chosen == number).nonzero(as_tuple=True)
            expert, weight = params.experts[number], weights[rows, place]
            out[rows] += run_expert(program.arithmetic, expert, hidden[rows], weight, limit)
        return out

    def company(self, program: Program) -> None:
        del program


LOCAL = LocalExperts()


def experts(
    step: Program,
    params: MoEParams,
    moe: MoEConfig,
    hidden: Tensor,
    image_rows: Tensor,
    routed: RoutedExperts = LOCAL,
    layer: int = 0,
) -> Tensor:
    """(T, hidden), normed -> (T, hidden). ``layer`` is for ``routed``."""
    arithmetic = step.arithmetic
    bias = torch.where(image_rows.unsqueeze(1), params.image_bias, params.bias)
    chosen, weights = choose_experts(arithmetic.exact_linear(hidden, params.gate), bias, moe)
    coded = arithmetic.coded(hidden)
    out = routed.run(step, layer, params, coded, chosen, weights)
    shared = run_expert(arithmetic, params.shared, coded, None, step.config.swiglu_limit)
    return arithmetic.stored(out + shared)


def run_expert(
    arithmetic: Arithmetic, expert: ExpertParams, coded: Tensor, weight: Tensor | None, limit: float
) -> Tensor:
    """(n, hidden), rounded as inputs are -> (n, hidden). The tokens' weights (n,) are multiplied in before the second
    product, and so before its input's rounding."""
    gate, up = arithmetic.linear(coded, expert.gate_up).chunk(2, dim=1)
    inner = silu(gate.clamp(max=limit)) * up.clamp(-limit, limit)
    if weight is not None:
        inner = inner * weight.unsqueeze(1)
    return arithmetic.coded_linear(arithmetic.stored(inner), expert.down)

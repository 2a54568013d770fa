"""One decoder layer: Engram where it has one, then attention and experts, each between mixing in and mixing out.

Works on any trunk it is given, so that a test can start at any layer.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .attention import attention
from .config_parts import MoEConfig
from .engram import add_engram
from .experts import LOCAL, RoutedExperts, experts
from .mixing import collapse, split_mix, write_back
from .params import LayerParams, MixParams
from .step import Program, Step
from .tensor_ops import sum_over


def run_layer(step: Step, layer: int, params: LayerParams, trunk: Tensor, pre: Tensor) -> tuple[Tensor, Tensor]:
    """Trunk (T, m, hidden) and pre-mix (T, m) -> those that the next layer gets."""
    if params.engram is not None:
        trunk = add_engram(step, params.engram, trunk)
    if step.features is not None and layer in step.config.draft.taps:
        step.features[layer] = step.arithmetic.stored(sum_over(trunk, 1) / step.config.streams)
    attend = lambda x: attention(step, layer, params, x)  # noqa: E731
    return run_block(step, params, step.config.moe, trunk, pre, step.image_rows, attend, step.experts, layer)


def run_block(
    step: Program,
    params: LayerParams,
    moe: MoEConfig,
    trunk: Tensor,
    pre: Tensor,
    image_rows: Tensor,
    attend: Callable[[Tensor], Tensor],
    routed: RoutedExperts = LOCAL,
    layer: int = 0,
) -> tuple[Tensor, Tensor]:
    """Both sub-layers, of a backbone or a draft layer; ``attend`` is what sets these apart, and draft layers keep
    their experts to themselves."""

    def mixed(x: Tensor) -> Tensor:
        return experts(step, params.moe, moe, x, image_rows, routed, layer)

    trunk, pre = sub_layer(step, params.attention_mix, params.attention_norm, trunk, pre, attend)
    return sub_layer(step, params.expert_mix, params.expert_norm, trunk, pre, mixed)


def sub_layer(
    step: Program, params: MixParams, norm: Tensor, trunk: Tensor, pre: Tensor, run: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """Reads the trunk with the ``pre`` of the sub-layer before, and mixes by the trunk as it was read."""
    config, arithmetic = step.config, step.arithmetic
    flat = trunk.flatten(1).contiguous()
    normed = arithmetic.ops.rms_norm(flat, torch.ones(flat.shape[1]), config.norm_eps)
    projected = arithmetic.exact_linear(normed, params.project)
    mix = split_mix(projected, params.scale, params.base, config.streams, config.sinkhorn_rounds, config.mix_eps)
    hidden = arithmetic.norm(arithmetic.stored(collapse(trunk, pre)), norm, config.norm_eps)
    return arithmetic.stored(write_back(trunk, run(hidden), mix)), mix.pre

"""Parameter containers of the dense family. They hold tensors and have no forward."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from headrace.kernels.ops import Weight


@dataclass(frozen=True, slots=True)
class LayerParams:
    """One decoder layer. Shapes are those of the unpacked matrices, (out, in).

    input_norm, mlp_norm (hidden,): in front of attention and MLP · attention_out_norm, mlp_out_norm
    (hidden,): on the branch outputs, where the family has them · qkv (q + k + v rows, hidden) ·
    q_norm, k_norm (head_dim,) · output (hidden, q rows) · gate_up (2 * intermediate, hidden) ·
    down (hidden, intermediate).
    Norm weights hold what is multiplied with: a family's offset is already added.
    """

    input_norm: Tensor
    qkv: Weight
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    output: Weight
    attention_out_norm: Tensor | None
    mlp_norm: Tensor
    gate_up: Weight
    down: Weight
    mlp_out_norm: Tensor | None


@dataclass(frozen=True, slots=True)
class DenseParams:
    """The whole model. ``head`` is ``embedding`` itself when they are tied.

    rope_tables: one per layer (max_positions, 2, head_dim / 2); layers with equal settings share one tensor.
    """

    embedding: Weight
    layers: tuple[LayerParams, ...]
    final_norm: Tensor
    head: Weight
    rope_tables: tuple[Tensor, ...]

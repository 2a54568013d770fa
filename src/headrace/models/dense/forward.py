"""The dense forward pass. Calls ops, creates no parameters, keeps nothing between steps.

Every line works row by row, so a row's result does not depend on the rows packed with it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from torch import Tensor

from headrace.contract.layout import KVLayout
from headrace.contract.stats import BoundedPairs, StepCost
from headrace.kernels.ops import Ops
from headrace.models.context import ForwardContext

from .config import DenseConfig
from .params import DenseParams, LayerParams


def step_cost(config: DenseConfig) -> StepCost:
    """Matrix products and attention, of layers with a window no more than that sees; norms and activations are left
    out, as is usual."""
    hidden, inner, layers = config.hidden_size, config.intermediate_size, config.num_layers
    q_rows, k_rows, v_rows = config.qkv_rows
    per_layer = hidden * (2 * q_rows + k_rows + v_rows + 3 * inner)
    windows = Counter(config.windows)
    bounded = [BoundedPairs(window, 4 * count * q_rows) for window, count in sorted(windows.items()) if window]
    return StepCost(
        token=2 * layers * per_layer,
        attended=4 * windows[0] * q_rows,
        sampled=2 * hidden * config.vocab_size,
        bounded=bounded,
    )


class DenseModel:
    """A ``Model`` (see ``models.context``). ``ops`` must be the backend that packed the weights."""

    capturable = True

    def __init__(self, config: DenseConfig, params: DenseParams, layout: KVLayout, ops: Ops) -> None:
        self.config, self.params, self.ops = config, params, ops
        self.vocab_size = config.vocab_size
        self.max_positions = config.max_positions
        self.kv_layout = layout
        self.step_cost = step_cost(config)

    def first_layers(self, count: int) -> DenseModel:
        """See ``EarlyExit``. Raises ValueError unless 1 <= count < layers."""
        if not 1 <= count < len(self.params.layers):
            raise ValueError(f"must lie between 1 and {len(self.params.layers) - 1}, got {count}")
        params = replace(self.params, layers=self.params.layers[:count])
        return DenseModel(self.config, params, self.kv_layout, self.ops)

    def forward(self, ctx: ForwardContext) -> Tensor:
        """Hidden states (T, hidden) before the final norm."""
        ops, config, layers = ctx.ops, self.config, self.params.layers
        residual = ops.embedding(ctx.input_ids, self.params.embedding)
        if config.embedding_scale != 1.0:
            residual = ops.axpy(residual, config.embedding_scale, None)
        branch: Tensor | None = None  # what the layer before adds; each norm does the addition
        for index, layer in enumerate(layers):
            qkv, residual = ops.norm_linear(
                residual, branch, layer.input_norm, config.norm_eps, layer.qkv, layer.qkv_bias
            )
            branch = self._attention(ctx, index, layer, qkv)
            gate_up, residual = ops.norm_linear(residual, branch, layer.mlp_norm, config.norm_eps, layer.gate_up, None)
            down = ops.gated_linear(self._whole(gate_up, 2), config.activation != "silu", layer.down)
            branch = self._normed(ops, self._whole(down), layer.mlp_out_norm)
        return residual if branch is None else ops.axpy(branch, 1.0, residual)

    def logits(self, hidden: Tensor) -> Tensor:
        """Final norm and LM head: (R, hidden) -> (R, V) float32."""
        logits, _ = self.ops.norm_linear(
            hidden, None, self.params.final_norm, self.config.norm_eps, self.params.head, None
        )
        return logits

    def greedy_ids(self, hidden: Tensor) -> Tensor:
        """(R, hidden) -> (R,) int32: the lowest id of the largest logits, -1 for a row without a finite maximum."""
        return self.ops.norm_argmax(hidden, self.params.final_norm, self.config.norm_eps, self.params.head)

    def _attention(self, ctx: ForwardContext, index: int, layer: LayerParams, qkv: Tensor) -> Tensor:
        """Attention branch of one layer, its projections (T, N) -> (T, hidden). Writes keys and values first."""
        ops, config, kv = ctx.ops, self.config, ctx.layers[index]
        group = ctx.groups[kv.group]
        q = ops.qkv_to_cache(
            qkv,
            layer.q_norm,
            layer.k_norm,
            config.norm_eps,
            ctx.positions,
            self.params.rope_tables[index],
            False,
            kv.k,
            kv.v,
            group.slots,
        )
        seen = ops.paged_attention(
            q,
            kv.k,
            kv.v,
            group.block_table,
            ctx.query_start_loc,
            ctx.seq_lens,
            config.attention_scale,
            config.windows[index],
        )
        output = ops.linear(self._whole(seen.flatten(1)), layer.output, None)
        return self._normed(ops, self._whole(output), layer.attention_out_norm)

    def _whole(self, part: Tensor, runs: int = 1) -> Tensor:
        """What a rank computed, completed by the others' parts (``sharded``): here it is whole."""
        del runs
        return part

    def _normed(self, ops: Ops, branch: Tensor, weight: Tensor | None) -> Tensor:
        return branch if weight is None else ops.rms_norm(branch, weight, self.config.norm_eps)

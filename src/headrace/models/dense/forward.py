"""The dense forward pass. Calls ops, creates no parameters, keeps nothing between steps.

Every line works row by row, so a row's result does not depend on the rows packed with it.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from headrace.contract.layout import KVLayout
from headrace.kernels.ops import Ops
from headrace.models.context import ForwardContext

from .config import DenseConfig
from .params import DenseParams, LayerParams


class DenseModel:
    """A ``Model`` (see ``models.context``). ``ops`` must be the backend that packed the weights."""

    def __init__(self, config: DenseConfig, params: DenseParams, layout: KVLayout, ops: Ops) -> None:
        self.config, self.params, self.ops = config, params, ops
        self.vocab_size = config.vocab_size
        self.max_positions = config.max_positions
        self.kv_layout = layout

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
        normed = ops.rms_norm(residual, layers[0].input_norm, config.norm_eps)
        for index, layer in enumerate(layers):
            branch = self._attention(ctx, index, layer, normed)
            normed, residual = ops.add_rms_norm(branch, residual, layer.mlp_norm, config.norm_eps)
            branch = self._mlp(ops, layer, normed)
            if index + 1 < len(layers):
                norm = layers[index + 1].input_norm
                normed, residual = ops.add_rms_norm(branch, residual, norm, config.norm_eps)
        return ops.axpy(branch, 1.0, residual)

    def logits(self, hidden: Tensor) -> Tensor:
        """Final norm and LM head: (R, hidden) -> (R, V) float32."""
        normed = self.ops.rms_norm(hidden, self.params.final_norm, self.config.norm_eps)
        return self.ops.linear(normed, self.params.head, None)

    def _attention(self, ctx: ForwardContext, index: int, layer: LayerParams, x: Tensor) -> Tensor:
        """Attention branch of one layer, (T, hidden) -> (T, hidden). Writes keys and values first."""
        ops, config, kv = ctx.ops, self.config, ctx.layers[index]
        group = ctx.groups[kv.group]
        q = ops.qkv_to_cache(
            ops.linear(x, layer.qkv, layer.qkv_bias),
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
        return self._normed(ops, ops.linear(seen.flatten(1), layer.output, None), layer.attention_out_norm)

    def _mlp(self, ops: Ops, layer: LayerParams, x: Tensor) -> Tensor:
        """MLP branch of one layer, (T, hidden) -> (T, hidden)."""
        gate_up = ops.linear(x, layer.gate_up, None)
        inner = ops.silu_mul(gate_up) if self.config.activation == "silu" else ops.gelu_tanh_mul(gate_up)
        return self._normed(ops, ops.linear(inner, layer.down, None), layer.mlp_out_norm)

    def _normed(self, ops: Ops, branch: Tensor, weight: Tensor | None) -> Tensor:
        return branch if weight is None else ops.rms_norm(branch, weight, self.config.norm_eps)

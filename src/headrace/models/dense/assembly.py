"""Wires a dense model: which tensors it needs, how they are fused and packed, how its KV is laid out.

Everything that can be wrong is checked on names and shapes before the first tensor is read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from torch import Tensor

from headrace.contract.layout import KVLayout, group_layers
from headrace.kernels.ops import Ops, Weight
from headrace.kernels.quant import QuantRows
from headrace.models.weights.checkpoint import Checkpoint
from headrace.parallel.tensor import TensorShare

from .config import DenseConfig, derive
from .config_reader import configuration_of
from .config_rope import RopeConfig
from .forward import DenseModel
from .params import DenseParams, LayerParams
from .sharded import ShardedModel, rank_config
from .tensor_ops import rope_table

Progress = Callable[[int, int], None]
EMBEDDING, FINAL_NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"


def load_dense(
    architecture: str,
    checkpoint: Checkpoint,
    ops: Ops,
    progress: Progress | None,
    exact: bool,
    share: TensorShare | None = None,
) -> DenseModel:
    """Build the model; ``exact`` as in ``load_model``. ``share``: a rank's part of it, a ``ShardedModel``.

    Errors: ConfigError for a setting, ModelError for a tensor.

    ``progress(done, total)`` counts tensors; the peak of memory is the packed model plus one unpacked matrix.
    """
    with configuration_of(checkpoint.source):
        config = derive(architecture, checkpoint.config)
    shapes = parameter_shapes(config)
    checkpoint.expect(shapes)
    part = config if share is None else rank_config(config, share)
    params = _Reading(config, checkpoint, ops, progress, exact, len(shapes), share).model()
    kind = DenseModel if share is None else ShardedModel
    return kind(part, params, kv_layout(part), ops)


def dense_bytes(architecture: str, checkpoint: Checkpoint, exact: bool) -> int:
    """Least memory that ``load_dense`` takes: all weights as they are packed, and the rope tables while they are made.

    Reads no weight.

    Errors: as ``load_dense``.
    """
    with configuration_of(checkpoint.source):
        config = derive(architecture, checkpoint.config)
    shapes = parameter_shapes(config)
    checkpoint.expect(shapes)
    if exact:
        weights = sum(prod(shape) for shape in shapes.values()) * torch.float32.itemsize
    else:
        weights = sum(map(checkpoint.packed_bytes, shapes))
    return weights + _rope_bytes(config)


def kv_layout(config: DenseConfig) -> KVLayout:
    """One KV group per set of layers that share a window."""
    groups = group_layers(list(config.windows))
    return KVLayout(config.num_layers, config.num_kv_heads, config.head_dim, groups)


def parameter_shapes(config: DenseConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes of all tensors the model reads, in reading order."""
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (config.vocab_size, config.hidden_size)}
    for index in range(config.num_layers):
        shapes |= {f"model.layers.{index}.{name}": shape for name, shape in _layer_shapes(config).items()}
    shapes[FINAL_NORM] = (config.hidden_size,)
    if not config.tied_head:
        shapes[HEAD] = (config.vocab_size, config.hidden_size)
    return shapes


def _layer_shapes(config: DenseConfig) -> dict[str, tuple[int, ...]]:
    hidden, inner, family = config.hidden_size, config.intermediate_size, config.family
    q_rows, k_rows, v_rows = config.qkv_rows
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (q_rows, hidden),
        "self_attn.k_proj.weight": (k_rows, hidden),
        "self_attn.v_proj.weight": (v_rows, hidden),
        "self_attn.o_proj.weight": (hidden, q_rows),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }
    if family.qkv_bias:
        shapes |= {f"self_attn.{p}_proj.bias": (n,) for p, n in zip("qkv", config.qkv_rows)}
    if family.qk_norm:
        shapes |= {f"self_attn.{p}_norm.weight": (config.head_dim,) for p in "qk"}
    if family.sandwich_norms:
        shapes |= {f"{p}_feedforward_layernorm.weight": (hidden,) for p in ("pre", "post")}
    return shapes


@dataclass(slots=True)
class _Reading:
    """One pass over a checkpoint, layer by layer."""

    config: DenseConfig
    checkpoint: Checkpoint
    ops: Ops
    progress: Progress | None
    exact: bool
    total: int
    share: TensorShare | None = None
    done: int = 0

    def model(self) -> DenseParams:
        config = self.config
        embedding = self.matrix(EMBEDDING)
        layers = tuple(self.layer(f"model.layers.{index}.") for index in range(config.num_layers))
        final_norm = self.norm(FINAL_NORM)
        head = embedding if config.tied_head else self.matrix(HEAD)
        return DenseParams(embedding, layers, final_norm, head, _rope_tables(config))

    def layer(self, at: str) -> LayerParams:
        family = self.config.family
        sandwich = family.sandwich_norms
        # The same name means another norm where branch outputs are normed too.
        after_attention = self.norm(f"{at}post_attention_layernorm.weight")
        return LayerParams(
            input_norm=self.norm(f"{at}input_layernorm.weight"),
            qkv=self.shared(*(f"{at}self_attn.{p}_proj.weight" for p in "qkv")),
            qkv_bias=self.rows(*(f"{at}self_attn.{p}_proj.bias" for p in "qkv")) if family.qkv_bias else None,
            q_norm=self.norm(f"{at}self_attn.q_norm.weight") if family.qk_norm else None,
            k_norm=self.norm(f"{at}self_attn.k_norm.weight") if family.qk_norm else None,
            output=self.shared(f"{at}self_attn.o_proj.weight"),
            attention_out_norm=after_attention if sandwich else None,
            mlp_norm=self.norm(f"{at}pre_feedforward_layernorm.weight") if sandwich else after_attention,
            gate_up=self.shared(f"{at}mlp.gate_proj.weight", f"{at}mlp.up_proj.weight"),
            down=self.shared(f"{at}mlp.down_proj.weight"),
            mlp_out_norm=self.norm(f"{at}post_feedforward_layernorm.weight") if sandwich else None,
        )

    def matrix(self, *names: str) -> Weight:
        """One packed weight out of matrices stacked by rows."""
        return self.ops.pack_weight([self.stored(name) for name in names])

    def shared(self, *names: str) -> Weight:
        """The same, of every matrix a rank's rows where ranks share it."""
        return self.ops.pack_weight([self.own(self.stored(name)) for name in names])

    def own(self, whole: Tensor | QuantRows) -> Tensor | QuantRows:
        if self.share is None:
            return whole
        if isinstance(whole, QuantRows):
            return whole.rows(np.array(self.share.rows(whole.n)))
        rows = self.share.rows(len(whole))
        return whole[rows.start : rows.stop]

    def norm(self, name: str) -> Tensor:
        return self.tensor(name) + self.config.family.norm_offset

    def rows(self, *names: str) -> Tensor:
        """Tensors stacked along their first dimension; a rank's rows of each where ranks share them."""
        return torch.cat([self.own(self.tensor(name)) for name in names])  # type: ignore[misc]

    def stored(self, name: str) -> Tensor | QuantRows:
        if self.exact:
            return self.tensor(name)
        stored = self.checkpoint.stored(name)
        self.count()
        return stored

    def tensor(self, name: str) -> Tensor:
        tensor = self.checkpoint.tensor(name)
        self.count()
        return tensor

    def count(self) -> None:
        self.done += 1
        if self.progress:
            self.progress(self.done, self.total)


def _rope_bytes(config: DenseConfig) -> int:
    """The tables, and beside the last one its angles, cosines and sines: half a table each."""
    table = config.max_positions * config.head_dim * torch.float32.itemsize
    return len(set(_ropes(config))) * table + 3 * table // 2


def _ropes(config: DenseConfig) -> list[RopeConfig]:
    return [config.sliding_rope if window else config.rope for window in config.windows]


def _rope_tables(config: DenseConfig) -> tuple[Tensor, ...]:
    ropes = _ropes(config)
    tables = {rope: rope_table(rope, config.head_dim, config.max_positions) for rope in set(ropes)}
    return tuple(tables[rope] for rope in ropes)

"""Wires a BERT encoder: which tensors it needs, held against the checkpoint before the first one is read."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.kernels.ops import Ops
from headrace.models.weights.checkpoint import Checkpoint

from .config import BertConfig, derive
from .forward import BertModel, Layer, Linear, Norm, Tables

PARTS = {
    "attention.self.query": ("hidden", "hidden"),
    "attention.self.key": ("hidden", "hidden"),
    "attention.self.value": ("hidden", "hidden"),
    "attention.output.dense": ("hidden", "hidden"),
    "intermediate.dense": ("inner", "hidden"),
    "output.dense": ("hidden", "inner"),
}
NORMS = ("attention.output.LayerNorm", "output.LayerNorm")
UNREAD = ("pooler.dense.weight", "pooler.dense.bias")  # for a task that no embedding has


def load_bert(checkpoint: Checkpoint, ops: Ops) -> BertModel:
    """All weights in float32. Errors: ModelError for a setting or a tensor."""
    config = derive(checkpoint.source, checkpoint.config)
    names, prefix = checkpoint.names(), "bert." if any(n.startswith("bert.") for n in checkpoint.names()) else ""
    shapes = {f"{prefix}{name}": shape for name, shape in parameter_shapes(config).items()}
    hidden = config.hidden_size
    for name, shape in zip(UNREAD, ((hidden, hidden), (hidden,))):
        if f"{prefix}{name}" in names:
            shapes[f"{prefix}{name}"] = shape
    checkpoint.expect(shapes)
    return _Reading(config, checkpoint, ops, prefix).model()


def parameter_shapes(config: BertConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the tensors that are read, without a prefix."""
    sizes = {"hidden": config.hidden_size, "inner": config.inner_size}
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (config.vocab_size, config.hidden_size),
        "embeddings.position_embeddings.weight": (config.max_positions, config.hidden_size),
        "embeddings.token_type_embeddings.weight": (config.num_types, config.hidden_size),
    }
    shapes |= _norm_shapes("embeddings.LayerNorm", config)
    for index in range(config.num_layers):
        at = f"encoder.layer.{index}."
        for part, (rows, columns) in PARTS.items():
            shapes[f"{at}{part}.weight"] = (sizes[rows], sizes[columns])
            shapes[f"{at}{part}.bias"] = (sizes[rows],)
        for norm in NORMS:
            shapes |= _norm_shapes(f"{at}{norm}", config)
    return shapes


def _norm_shapes(name: str, config: BertConfig) -> dict[str, tuple[int, ...]]:
    return dict.fromkeys((f"{name}.weight", f"{name}.bias"), (config.hidden_size,))


class _Reading:
    """One pass over a checkpoint."""

    def __init__(self, config: BertConfig, checkpoint: Checkpoint, ops: Ops, prefix: str) -> None:
        self.config, self.checkpoint, self.ops, self.prefix = config, checkpoint, ops, prefix

    def model(self) -> BertModel:
        at = "embeddings."
        kinds = ("word", "position", "token_type")
        word, position, types = (self.tensor(f"{at}{kind}_embeddings.weight") for kind in kinds)
        tables = Tables(word, position + types[0], self.norm(f"{at}LayerNorm"))
        layers = [self.layer(f"encoder.layer.{index}.") for index in range(self.config.num_layers)]
        return BertModel(self.config, tables, layers, self.ops)

    def layer(self, at: str) -> Layer:
        qkv = self.linear(*(f"{at}attention.self.{part}" for part in ("query", "key", "value")))
        output, inner, outer = (self.linear(f"{at}{part}") for part in list(PARTS)[3:])
        return Layer(qkv, output, self.norm(f"{at}{NORMS[0]}"), inner, outer, self.norm(f"{at}{NORMS[1]}"))

    def linear(self, *names: str) -> Linear:
        """One product out of several stacked by rows."""
        weight = self.ops.pack_weight([self.tensor(f"{name}.weight") for name in names])
        return Linear(weight, torch.cat([self.tensor(f"{name}.bias") for name in names]))

    def norm(self, name: str) -> Norm:
        return Norm(self.tensor(f"{name}.weight"), self.tensor(f"{name}.bias"))

    def tensor(self, name: str) -> Tensor:
        return self.checkpoint.tensor(f"{self.prefix}{name}")

"""What a BERT encoder's ``config.json`` says, checked. Reads no weight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.contract.errors import ModelError

COUNTS = {
    "hidden_size": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "inner_size": "intermediate_size",
    "max_positions": "max_position_embeddings",
    "vocab_size": "vocab_size",
    "num_types": "type_vocab_size",
}
ACTIVATIONS = ("gelu", "gelu_new", "relu")


@dataclass(frozen=True, slots=True)
class BertConfig:
    """Sizes and the two choices there are. ``activation`` is between the two feed-forward products."""

    hidden_size: int
    num_layers: int
    num_heads: int
    inner_size: int
    max_positions: int
    vocab_size: int
    num_types: int
    norm_eps: float
    activation: str

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads


def derive(source: str, config: Mapping[str, Any]) -> BertConfig:
    """Raises ModelError naming ``source`` and the key at fault."""
    counts = {ours: _count(source, config, theirs) for ours, theirs in COUNTS.items()}
    if (hidden := counts["hidden_size"]) % (heads := counts["num_heads"]):
        raise ModelError(f"{source}: num_attention_heads", f"{heads} heads do not divide {hidden}")
    if config.get("position_embedding_type", "absolute") != "absolute":
        raise ModelError(f"{source}: position_embedding_type", "only absolute is known")
    activation = config.get("hidden_act", "gelu")
    if activation not in ACTIVATIONS:
        raise ModelError(f"{source}: hidden_act", f"{activation!r} is unknown; known: {', '.join(ACTIVATIONS)}")
    eps = config.get("layer_norm_eps", 1e-12)
    if not isinstance(eps, float) or not 0 < eps < 1:
        raise ModelError(f"{source}: layer_norm_eps", f"must lie between 0 and 1, got {eps!r}")
    return BertConfig(**counts, norm_eps=eps, activation=activation)


def _count(source: str, config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 1 << 24:
        raise ModelError(f"{source}: {name}", f"must be a whole number from 1, got {value!r}")
    return value

"""DenseConfig: everything the dense program needs to know, derived and checked once. Holds no tensor.

A setting that would change the arithmetic and is not supported is refused here, by name; nothing is ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.contract.errors import ConfigError

from .config_reader import ConfigReader
from .config_rope import RopeConfig, read_ropes
from .families import FAMILIES, Family

MAX_LAYERS = 1024
MAX_WIDTH = 1 << 18
ACTIVATIONS = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
# Settings of relatives of these architectures, with the values under which they change nothing.
INERT: dict[str, tuple[Any, ...]] = {
    "attn_logit_softcapping": (0,),
    "final_logit_softcapping": (0,),
    "mlp_bias": (False,),
    "num_experts": (0,),
    "num_local_experts": (0, 1),
    "partial_rotary_factor": (1,),
    "quantization_config": (),
    "rope_interleaved": (False,),
    "use_bidirectional_attention": (False,),
}


@dataclass(frozen=True, slots=True)
class DenseConfig:
    """Sizes and choices of one model. ``windows``: visible positions per layer, 0 = all.

    Layers with a window use ``sliding_rope``, the others ``rope`` (often the same object).
    """

    family: Family
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_positions: int
    norm_eps: float
    activation: str
    tied_head: bool
    embedding_scale: float
    attention_scale: float
    windows: tuple[int, ...]
    rope: RopeConfig
    sliding_rope: RopeConfig

    @property
    def qkv_rows(self) -> tuple[int, int, int]:
        """Rows of the q, k and v parts of the fused projection."""
        kv = self.num_kv_heads * self.head_dim
        return self.num_heads * self.head_dim, kv, kv


def derive(architecture: str, values: Mapping[str, Any]) -> DenseConfig:
    """Check a ``config.json`` dictionary and derive the configuration. Errors: ConfigError naming the key."""
    family = FAMILIES[architecture]
    reader = ConfigReader(values)
    reader.refuse({**INERT, "attention_bias": (family.qkv_bias,)})
    hidden = reader.integer("hidden_size", most=MAX_WIDTH)
    num_layers = reader.integer("num_hidden_layers", most=MAX_LAYERS)
    num_heads, num_kv_heads, head_dim = _read_heads(reader, family, hidden)
    rope, sliding_rope = read_ropes(reader, head_dim, family.two_rope_bases, family.rope_theta)
    scalar = reader.number("query_pre_attn_scalar", head_dim) if family.query_scalar else head_dim
    return DenseConfig(
        family=family,
        vocab_size=reader.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=reader.integer("intermediate_size", most=MAX_WIDTH),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        max_positions=reader.integer("max_position_embeddings"),
        norm_eps=reader.number("rms_norm_eps"),
        activation=reader.choice(family.activation_key, ACTIVATIONS, family.activation),
        tied_head=reader.flag("tie_word_embeddings", family.tied_head),
        embedding_scale=hidden**0.5 if family.scaled_embedding else 1.0,
        attention_scale=scalar**-0.5,
        windows=family.windows(reader, num_layers),
        rope=rope,
        sliding_rope=sliding_rope,
    )


def _read_heads(reader: ConfigReader, family: Family, hidden: int) -> tuple[int, int, int]:
    num_heads = reader.integer("num_attention_heads", most=MAX_WIDTH)
    num_kv_heads = reader.integer("num_key_value_heads", num_heads, most=MAX_WIDTH)
    if num_heads % num_kv_heads:
        raise ConfigError("num_key_value_heads", f"{num_kv_heads} does not divide the {num_heads} heads")
    if reader.raw("head_dim") is None and not family.head_dim and hidden % num_heads:
        raise ConfigError("num_attention_heads", f"{num_heads} does not divide hidden_size {hidden}")
    head_dim = reader.integer("head_dim", family.head_dim or hidden // num_heads, most=1 << 14)
    if head_dim % 2:
        raise ConfigError("head_dim", f"{head_dim} is odd: rotary positions need pairs")
    return num_heads, num_kv_heads, head_dim

"""The table of dense architectures: what sets them apart, as data. To add one, add a row (and tests)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.contract.errors import ConfigError

from .config_reader import ConfigReader

FULL, SLIDING = "full_attention", "sliding_attention"
# Gemma 3 puts one global layer after every five local ones, unless the configuration lists them.
GEMMA3_PATTERN = 6

# (reader, num_layers) -> window of each layer, 0 = full attention
WindowRule = Callable[[ConfigReader, int], tuple[int, ...]]


def full_attention(reader: ConfigReader, num_layers: int) -> tuple[int, ...]:
    """Every layer sees everything."""
    reader.refuse({"sliding_window": ()})
    return (0,) * num_layers


def optional_window(reader: ConfigReader, num_layers: int) -> tuple[int, ...]:
    """Qwen: off unless ``use_sliding_window``; then layers from ``max_window_layers`` on slide."""
    if not reader.flag("use_sliding_window", False):
        return (0,) * num_layers
    window = reader.integer("sliding_window")
    listed = _listed(reader, num_layers, window)
    if listed is not None:
        return listed
    first = reader.raw("max_window_layers")
    if isinstance(first, bool) or not isinstance(first, int) or first < 0:
        raise ConfigError("max_window_layers", f"must be a whole number from 0, not {first!r}")
    return tuple(window if layer >= first else 0 for layer in range(num_layers))


def interleaved_window(reader: ConfigReader, num_layers: int) -> tuple[int, ...]:
    """Gemma 3: every ``sliding_window_pattern``-th layer is global, the others slide."""
    window = reader.integer("sliding_window")
    listed = _listed(reader, num_layers, window)
    if listed is not None:
        return listed
    key = "_sliding_window_pattern" if reader.raw("sliding_window_pattern") is None else "sliding_window_pattern"
    pattern = reader.integer(key, GEMMA3_PATTERN)
    return tuple(0 if (layer + 1) % pattern == 0 else window for layer in range(num_layers))


def _listed(reader: ConfigReader, num_layers: int, window: int) -> tuple[int, ...] | None:
    kinds = reader.raw("layer_types")
    if kinds is None:
        return None
    if not isinstance(kinds, list) or len(kinds) != num_layers:
        raise ConfigError("layer_types", f"must be a list of {num_layers} entries, one per layer")
    for kind in kinds:
        if kind not in (FULL, SLIDING):
            raise ConfigError("layer_types", f"{kind!r} is not supported; known: {FULL}, {SLIDING}")
    return tuple(window if kind == SLIDING else 0 for kind in kinds)


@dataclass(frozen=True, slots=True)
class Family:
    """One architecture.

    qkv_bias: q, k and v have a bias · qk_norm: RMS norm of each query and key head before the rotation ·
    norm_offset: norms multiply by ``offset + w`` · sandwich_norms: branch outputs are normed before they are
    added · scaled_embedding: embeddings are multiplied by sqrt(hidden) · two_rope_bases: sliding layers have
    a rotary base of their own · rope_theta: the base when the configuration
    has none · query_scalar: attention scale comes from ``query_pre_attn_scalar`` ·
    head_dim: head size when the configuration has none (0: hidden / heads).
    """

    windows: WindowRule
    activation_key: str = "hidden_act"
    activation: str = "silu"
    qkv_bias: bool = False
    qk_norm: bool = False
    norm_offset: float = 0.0
    sandwich_norms: bool = False
    scaled_embedding: bool = False
    two_rope_bases: bool = False
    rope_theta: float = 1e4
    query_scalar: bool = False
    head_dim: int = 0
    tied_head: bool = False


FAMILIES: dict[str, Family] = {
    "LlamaForCausalLM": Family(full_attention),
    "Qwen2ForCausalLM": Family(optional_window, qkv_bias=True),
    "Qwen3ForCausalLM": Family(optional_window, qk_norm=True, head_dim=128),
    "Gemma3ForCausalLM": Family(
        interleaved_window,
        activation_key="hidden_activation",
        activation="gelu_pytorch_tanh",
        qk_norm=True,
        norm_offset=1.0,
        sandwich_norms=True,
        scaled_embedding=True,
        two_rope_bases=True,
        rope_theta=1e6,
        query_scalar=True,
        head_dim=256,
        tied_head=True,
    ),
}

"""Builds a configuration in ``config.json`` terms from GGUF metadata, with the defaults of each architecture.

Strict: a metadata key under the architecture's prefix that is not listed here might change the arithmetic, so
it is refused rather than dropped. Keys of other prefixes (``general``, ``tokenizer``) are not looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.contract.errors import ModelError

from .gguf_header import GGUFHeader
from .gguf_names import PRE_NORMS, SANDWICH_NORMS

ROPE_FACTORS = "rope_freqs.weight"
# Gemma 3's 27B model alone scales queries by hidden / heads, not by the head size; the file does not say so.
GEMMA3_27B_LAYERS = 62

# metadata key (without prefix) -> config.json key
NUMBERS = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.key_length": "head_dim",
    "attention.sliding_window": "sliding_window",
    "rope.freq_base": "rope_theta",
    "rope.freq_base_swa": "rope_local_base_freq",
    "vocab_size": "vocab_size",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
FRACTIONS = {
    *("attention.layer_norm_rms_epsilon", "rope.freq_base", "rope.freq_base_swa"),
    *("attn_logit_softcapping", "final_logit_softcapping"),
}
REQUIRED = (
    *("context_length", "embedding_length", "block_count", "feed_forward_length"),
    *("attention.head_count", "attention.layer_norm_rms_epsilon"),
)
HANDLED = {
    *NUMBERS,
    *("attention.value_length", "rope.dimension_count", "attention.sliding_window_pattern"),
    *("expert_count", "expert_used_count"),
    *("rope.scaling.type", "rope.scaling.factor", "rope.scaling.finetuned"),
    "rope.scaling.original_context_length",
}


@dataclass(frozen=True, slots=True)
class GGUFFamily:
    """How one GGUF architecture differs from its Hugging Face form."""

    hf_architecture: str
    activation: str = "silu"
    interleaved_qk: bool = False
    norm_offset: float = 0.0
    norm_names: Mapping[str, str] = field(default_factory=lambda: PRE_NORMS)
    defaults: Mapping[str, Any] = field(default_factory=dict)


FAMILIES = {
    "llama": GGUFFamily("LlamaForCausalLM", interleaved_qk=True),
    "qwen2": GGUFFamily("Qwen2ForCausalLM"),
    "qwen3": GGUFFamily("Qwen3ForCausalLM"),
    "gemma3": GGUFFamily(
        "Gemma3ForCausalLM",
        activation="gelu_pytorch_tanh",
        norm_offset=1.0,
        norm_names=SANDWICH_NORMS,
        defaults={
            "rope_theta": 1e6,
            "rope_local_base_freq": 1e4,
            "sliding_window_pattern": 6,
            "head_dim": 256,
        },
    ),
}


def family_of(source: str, metadata: dict[str, Any]) -> GGUFFamily:
    """The family row. Errors: ModelError naming the architecture and the known ones."""
    name = metadata.get("general.architecture")
    if not isinstance(name, str) or name not in FAMILIES:
        raise ModelError(f"{source}: general.architecture", f"{name!r} is unknown; known: {sorted(FAMILIES)}")
    return FAMILIES[name]


def config_from_metadata(
    source: str, header: GGUFHeader, family: GGUFFamily, rope_factors: list[float] | None
) -> dict[str, Any]:
    """The configuration. ``rope_factors``: the file's per-frequency divisors, if it has them."""
    prefix = header.metadata["general.architecture"] + "."
    own = {k.removeprefix(prefix): v for k, v in header.metadata.items() if k.startswith(prefix)}
    _check_keys(source, prefix, own)
    config: dict[str, Any] = {
        "architectures": [family.hf_architecture],
        "hidden_act": family.activation,
        "hidden_activation": family.activation,
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "rope_theta": 1e4,
        **family.defaults,
        **{NUMBERS[key]: value for key, value in own.items() if key in NUMBERS},
    }
    config.setdefault("num_key_value_heads", config["num_attention_heads"])
    config.setdefault("vocab_size", _stored_vocab(source, header))
    config["rope_scaling"] = _rope_scaling(source, prefix, own, rope_factors)
    _check_heads(source, prefix, own, config)
    if family.hf_architecture == "Gemma3ForCausalLM":
        _finish_gemma3(own, config)
    return config


def _check_keys(source: str, prefix: str, own: dict[str, Any]) -> None:
    for key in REQUIRED:
        if key not in own:
            raise ModelError(f"{source}: {prefix}{key}", "is missing")
    for key, value in own.items():
        if key not in HANDLED:
            raise ModelError(f"{source}: {prefix}{key}", "is a setting this version does not know")
        if key in NUMBERS and type(value) not in ((float,) if key in FRACTIONS else (int,)):
            raise ModelError(f"{source}: {prefix}{key}", "must be one number, of the format's type for it")
        if key.startswith("expert_") and value:
            raise ModelError(f"{source}: {prefix}{key}", "mixtures of experts are not supported")


def _check_heads(source: str, prefix: str, own: dict[str, Any], config: dict[str, Any]) -> None:
    """Sizes that the configuration cannot express separately must agree."""
    if "head_dim" not in config:
        if config["num_attention_heads"] <= 0:
            raise ModelError(f"{source}: {prefix}attention.head_count", "must be positive")
        config["head_dim"] = config["hidden_size"] // config["num_attention_heads"]
    for key in ("attention.value_length", "rope.dimension_count"):
        if own.get(key, config["head_dim"]) != config["head_dim"]:
            message = f"{own[key]} differs from the head size {config['head_dim']}: not supported"
            raise ModelError(f"{source}: {prefix}{key}", message)


def _stored_vocab(source: str, header: GGUFHeader) -> int:
    info = header.tensors.get("token_embd.weight")
    if info is None:
        raise ModelError(f"{source}: token_embd.weight", "is missing")
    return info.shape[0]


def _rope_scaling(source: str, prefix: str, own: dict[str, Any], factors: list[float] | None) -> dict[str, Any] | None:
    kind = own.get("rope.scaling.type", "none")
    if factors is not None:
        if kind != "none":
            raise ModelError(f"{source}: {prefix}rope.scaling.type", f"{kind!r} beside {ROPE_FACTORS}: one rule only")
        # Not a config.json term elsewhere: the file stores the result of a scaling rule, not the rule.
        return {"rope_type": "frequency_factors", "factors": factors}
    if kind == "none":
        return None
    if kind != "linear" or "rope.scaling.factor" not in own:
        raise ModelError(f"{source}: {prefix}rope.scaling.type", f"{kind!r} is not supported; known: none, linear")
    return {"rope_type": "linear", "factor": own["rope.scaling.factor"]}


def _finish_gemma3(own: dict[str, Any], config: dict[str, Any]) -> None:
    pattern = own.get("attention.sliding_window_pattern")
    if isinstance(pattern, list):
        kinds = ["sliding_attention" if sliding else "full_attention" for sliding in pattern]
        config["layer_types"] = kinds
    elif pattern is not None:
        config["sliding_window_pattern"] = pattern
    scalar = config["head_dim"]
    if config["num_hidden_layers"] == GEMMA3_27B_LAYERS:
        scalar = config["hidden_size"] // config["num_attention_heads"]
    config["query_pre_attn_scalar"] = scalar

"""Derivation of DenseConfig: defaults, spellings, and every setting that must be refused by name."""

from __future__ import annotations

import math
from typing import Any

import pytest
from tiny_models import CONFIGS

from headrace.contract.errors import ConfigError
from headrace.models.dense.config import DenseConfig, derive

NAN, GONE = math.nan, Ellipsis


def derived(name: str, **changes: Any) -> DenseConfig:
    config = {key: value for key, value in {**CONFIGS[name], **changes}.items() if value is not GONE}
    return derive(config["architectures"][0], config)


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("llama", {"attention_bias": True}, "attention_bias"),
    ("qwen3", {"attention_bias": True}, "attention_bias"),
    ("qwen2", {"attention_bias": False}, "attention_bias"),
    ("llama", {"mlp_bias": True}, "mlp_bias"),
    ("llama", {"hidden_act": "gelu"}, "hidden_act"),
    ("gemma3", {"hidden_activation": "relu"}, "hidden_activation"),
    ("gemma3", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
    ("gemma3", {"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
    ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
    ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ("llama", {"rope_interleaved": True}, "rope_interleaved"),
    ("llama", {"quantization_config": {"bits": 4}}, "quantization_config"),
    ("llama", {"num_local_experts": 8}, "num_local_experts"),
    ("llama", {"sliding_window": 4096}, "sliding_window"),
    ("llama", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, r"rope_scaling\.rope_type"),
    ("llama", {"rope_scaling": {"type": "dynamic", "factor": 4.0}}, r"rope_scaling\.type"),
    ("llama", {"rope_scaling": {"rope_type": "linear"}}, r"rope_scaling\.factor"),
    ("llama", {"rope_scaling": [1]}, "rope_scaling"),
    (
        "llama",
        {"rope_scaling": {"rope_type": "frequency_factors", "factors": [1.0]}},
        r"rope_scaling\.factors",
    ),
    (
        "llama",
        {"rope_scaling": {"rope_type": "frequency_factors", "factors": [0] * 4}},
        r"rope_scaling\.factors",
    ),
    ("llama", {"rope_parameters": {"rope_type": "yarn"}}, r"rope_parameters\.rope_type"),
    ("qwen3", {"rope_parameters": {"sliding_attention": {"rope_theta": 5.0}}}, "rope_parameters"),
    ("llama", {"rope_parameters": {"rope_theta": 5.0}}, r"rope_parameters\.rope_theta"),
    ("llama", {"rope_parameters": {}, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "rope_scaling"),
    ("llama", {"rope_parameters": {}, "rope_scaling": {"rope_type": "yarn"}}, r"rope_scaling\.rope_type"),
    ("gemma3", {"rope_parameters": {"sliding_attention": {"rope_theta": 5.0}}}, r"sliding_attention\.rope_theta"),
    ("gemma3", {"rope_parameters": {}}, "rope_local_base_freq"),
    (
        "llama-untied-scaled",
        {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
        r"rope_scaling\.low_freq",
    ),
    ("llama", {"num_key_value_heads": 3}, "num_key_value_heads"),
    ("llama", {"num_attention_heads": 5, "num_key_value_heads": 5}, "num_attention_heads"),
    ("llama", {"head_dim": 7}, "head_dim"),
    ("llama", {"hidden_size": GONE}, "hidden_size: is missing"),
    ("llama", {"hidden_size": "32"}, "hidden_size"),
    ("llama", {"hidden_size": 32.0}, "hidden_size"),
    ("llama", {"num_hidden_layers": 0}, "num_hidden_layers"),
    ("llama", {"num_hidden_layers": 10**9}, "num_hidden_layers"),
    ("llama", {"num_hidden_layers": True}, "num_hidden_layers"),
    ("llama", {"vocab_size": -1}, "vocab_size"),
    ("llama", {"rms_norm_eps": 0}, "rms_norm_eps"),
    ("llama", {"rope_theta": NAN}, "rope_theta"),
    ("llama", {"rope_theta": math.inf}, "rope_theta"),
    ("llama", {"rope_theta": 10**400}, "rope_theta"),
    ("llama", {"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
    ("llama", {"max_position_embeddings": 1 << 40}, "max_position_embeddings"),
    ("qwen2-sliding", {"max_window_layers": -1}, "max_window_layers"),
    ("qwen2-sliding", {"sliding_window": GONE}, "sliding_window"),
    ("gemma3", {"layer_types": ["full_attention"]}, "layer_types"),
    ("gemma3", {"layer_types": ["chunked_attention"] * 7}, "layer_types"),
    ("gemma3", {"sliding_window": 0}, "sliding_window"),
]


@pytest.mark.parametrize(("name", "changes", "message"), REFUSED, ids=[f"{n}-{c}" for n, c, _ in REFUSED])
def test_refused(name: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        derived(name, **changes)


def test_inert_values_pass() -> None:
    inert = {
        "attention_bias": False,
        "mlp_bias": False,
        "rope_interleaved": False,
        "partial_rotary_factor": 1.0,
    }
    off = {"rope_scaling": None, "final_logit_softcapping": None, "sliding_window": None, "head_dim": None}
    assert derived("llama", **inert, **off) == derived("llama")


def test_windows() -> None:
    assert derived("gemma3").windows == (6, 6, 0, 6, 6, 0, 6)
    assert derived("gemma3", sliding_window_pattern=GONE).windows == (6, 6, 6, 6, 6, 0, 6)
    assert derived("gemma3", sliding_window_pattern=GONE, _sliding_window_pattern=2).windows == (
        6,
        0,
        6,
        0,
        6,
        0,
        6,
    )
    kinds = ["full_attention"] + ["sliding_attention"] * 6
    assert derived("gemma3", layer_types=kinds).windows == (0, 6, 6, 6, 6, 6, 6)
    assert derived("qwen2").windows == (0, 0, 0)
    assert derived("qwen2-sliding").windows == (0, 5, 5)


def test_defaults() -> None:
    assert derived("llama", num_key_value_heads=GONE).num_kv_heads == 4
    assert derived("qwen3", head_dim=GONE).head_dim == 128
    assert derived("llama", tie_word_embeddings=GONE).tied_head is False
    assert derived("gemma3").tied_head is True
    assert derived("gemma3", rope_theta=GONE).rope.theta == 1e6
    assert derived("gemma3").attention_scale == pytest.approx(10**-0.5)
    assert derived("gemma3").embedding_scale == pytest.approx(32**0.5)
    assert derived("gemma3", rope_scaling={"rope_type": "linear", "factor": 8.0}).sliding_rope.kind == "default"


def test_the_older_rope_keys_are_the_defaults_of_the_newer_ones() -> None:
    linear = {"rope_type": "linear", "factor": 8.0}
    older = derived("gemma3", rope_theta=3e5, rope_local_base_freq=7e3, rope_scaling=linear)
    layers = {"full_attention": linear, "sliding_attention": {"rope_type": "default"}}
    for both in ({}, {"rope_scaling": linear}, {"rope_scaling": layers}):
        newer = derived("gemma3", rope_theta=3e5, rope_local_base_freq=7e3, rope_parameters=layers, **both)
        assert (newer.rope, newer.sliding_rope) == (older.rope, older.sliding_rope)
    assert derived("llama", rope_theta=3e5, rope_parameters=linear).rope.theta == 3e5

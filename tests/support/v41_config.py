"""A small V4.1 configuration, changes to it, and a model of random weights made from it. Test helper; needs no data."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import torch

from headrace.kernels.resolve import resolve_ops
from headrace.models.deepseek_v41.assembly import load_v41
from headrace.models.deepseek_v41.forward import V41Model
from headrace.models.weights.dummy import DummyCheckpoint

TEXT: dict[str, Any] = {
    "vocab_size": 2048,
    "hidden_size": 256,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 1,
    "head_dim": 512,
    "qk_rope_head_dim": 64,
    "q_lora_rank": 128,
    "o_lora_rank": 64,
    "o_groups": 2,
    "sliding_window": 128,
    "rope_theta": 10000,
    "compress_rope_theta": 160000,
    "rope_scaling": {
        "type": "yarn",
        "factor": 16,
        "beta_fast": 32,
        "beta_slow": 1,
        "original_max_position_embeddings": 65536,
    },
    "max_position_embeddings": 16384,
    "rms_norm_eps": 1e-20,
    "hidden_act": "silu",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "tie_word_embeddings": False,
    "swiglu_limit": 10.0,
    "compress_ratios": [0, 2, 2, 2, 1, 1, 1, 1, 0, 0],
    "kv_source_layer_ids": [1, 4],
    "index_source_layer_ids": [1, 3, 4, 6],
    "index_n_heads": 16,
    "index_head_dim": 128,
    "index_topk": 64,
    "candidate_source_layer_id": 4,
    "candidate_topk_blocks": 64,
    "candidate_block_size": 8,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6,
    "hc_shifted": True,
    "moe_intermediate_size": 128,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "engram_layer_ids": [1, 3],
    "engram_max_ngram_size": 4,
    "engram_vocab_size": 1009,
    "engram_n_heads": 2,
    "engram_head_dim": 128,
    "engram_pad_token_id": 2,
    "engram_compressed_vocab_size": 1,
    "num_nextn_predict_layers": 2,
    "dspark_block_size": 5,
    "dspark_noise_token_id": 2000,
    "dspark_target_layer_ids": [5, 6, 7],
    "dspark_target_attn_input": True,
    "dspark_markov_rank": 64,
    "dspark_n_routed_experts": 4,
    "dspark_num_experts_per_tok": 2,
    "use_fp4_sparse_kv": True,
}
CONFIG: dict[str, Any] = {
    "architectures": ["DeepseekV41ForCausalLM"],
    "model_type": "deepseek_v41",
    "dtype": "bfloat16",
    "pad_token_id": 2,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "image_token_id": 1999,
    "quantization_config": {
        "quant_method": "fp8",
        "expert_dtype": "fp4",
        "activation_scheme": "dynamic",
        "weight_block_size": [32, 32],
        "scale_fmt": "ue8m0",
    },
    "text_config": TEXT,
    "vision_config": {
        "hidden_size": 64,
        "downsample_ratio": 3,
        "patch_size": 14,
        "max_image_tokens": 64,
        "min_pixels": 3136,
        "max_wh_ratio": None,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 128,
        "rope_theta": 10000,
    },
}
ABSENT = object()


def changed(**changes: Any) -> dict[str, Any]:
    """The configuration with keys replaced or, with ``ABSENT``, dropped; ``section__key`` reaches into a section."""
    config = copy.deepcopy(CONFIG)
    for name, value in changes.items():
        *sections, key = name.split("__")
        at = config
        for section in sections:
            at = at[section]
        if value is ABSENT:
            del at[key]
        else:
            at[key] = value
    return config


def text(**changes: Any) -> dict[str, Any]:
    return changed(**{f"text_config__{key}": value for key, value in changes.items()})


def narrow() -> dict[str, Any]:
    """Everything small: prompts of some dozen tokens exceed the window, the chosen entries and the candidate blocks."""
    config = text(
        vocab_size=300,
        hidden_size=64,
        num_attention_heads=4,
        head_dim=96,
        q_lora_rank=32,
        o_lora_rank=32,
        sliding_window=16,
        max_position_embeddings=1024,
        index_n_heads=4,
        index_head_dim=64,
        index_topk=16,
        candidate_topk_blocks=8,
        moe_intermediate_size=32,
        engram_layer_ids=[0, 3],
        engram_vocab_size=50,
        engram_head_dim=32,
        dspark_noise_token_id=299,
        dspark_markov_rank=32,
    )
    return config | {"image_token_id": 298}


@cache
def dummy_model(
    mode: str = "float32",
    backend: str = "cpu",
    *,
    narrow_kv: bool = True,
    seed: int = 5,
    max_positions: int = 1024,
) -> V41Model:
    """``narrow()`` with random weights, which depend on the seed alone."""
    torch.set_num_threads(1)
    config = narrow()
    config["text_config"] |= {"use_fp4_sparse_kv": narrow_kv, "max_position_embeddings": max_positions}
    checkpoint = DummyCheckpoint("dummy", config, seed=seed)
    return load_v41(checkpoint, resolve_ops(backend, strict=True), None, mode, None)

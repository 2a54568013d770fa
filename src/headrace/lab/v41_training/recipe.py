"""The small member's configuration and how it is trained, as data: ``config.json``, and the numbers of the run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .text import BEGIN, END, IMAGE_ID, NOISE_ID, PAD, VOCAB


@dataclass(frozen=True, slots=True)
class Recipe:
    """``steps`` of ``sequences`` sequences; each sequence drafts ``anchors`` blocks. Rates are of AdamW.

    round_from: share of the steps after which everything is rounded as it will be stored.
    """

    steps: int = 620
    sequences: int = 8
    length: int = 256
    anchors: int = 20
    seed: int = 41
    rate: float = 2e-3
    table_rate: float = 4e-3  # of embeddings and Engram's tables: each row is met rarely
    decay: float = 0.05
    warmup: int = 40
    clip: float = 1.0
    round_from: float = 0.8
    drop_memory: float = 0.3
    index_weight: float = 0.3
    trust_weight: float = 0.2
    balance_step: float = 0.005


def mini_config(vocab: int = VOCAB) -> dict[str, Any]:
    """``config.json``: every mechanism of the family, cache records of their real sizes, little else."""
    return {
        "architectures": ["DeepseekV41ForCausalLM"],
        "model_type": "deepseek_v41",
        "dtype": "bfloat16",
        "bos_token_id": BEGIN,
        "eos_token_id": END,
        "pad_token_id": PAD,
        "image_token_id": IMAGE_ID,
        "quantization_config": {
            "quant_method": "fp8",
            "activation_scheme": "dynamic",
            "weight_block_size": [32, 32],
            "scale_fmt": "ue8m0",
            "expert_dtype": "fp4",
        },
        "text_config": _text(vocab),
        "vision_config": _vision(),
    }


def _text(vocab: int) -> dict[str, Any]:
    return {
        "model_type": "deepseek_v41_text",
        "vocab_size": vocab,
        "hidden_size": 192,
        "num_hidden_layers": 6,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 512,
        "qk_rope_head_dim": 64,
        "q_lora_rank": 96,
        "o_lora_rank": 48,
        "o_groups": 2,
        "hidden_act": "silu",
        "swiglu_limit": 10.0,
        "rms_norm_eps": 1e-6,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": False,
        "max_position_embeddings": 4096,
        "rope_theta": 10000,
        "compress_rope_theta": 160000,
        "sliding_window": 64,
        "compress_ratios": [0, 2, 2, 1, 1, 1, 0, 0],
        "kv_source_layer_ids": [1, 3],
        "index_source_layer_ids": [1, 3, 5],
        "index_n_heads": 8,
        "index_head_dim": 128,
        "index_topk": 64,
        "candidate_source_layer_id": 3,
        "candidate_topk_blocks": 64,
        "candidate_block_size": 8,
        "use_fp4_sparse_kv": True,
        "hc_mult": 4,
        "hc_sinkhorn_iters": 4,
        "hc_eps": 1e-6,
        "moe_intermediate_size": 64,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "scoring_func": "sqrtsoftplus",
        "topk_method": "noaux_tc",
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.5,
        "engram_layer_ids": [1, 2],
        "engram_max_ngram_size": 4,
        "engram_vocab_size": 2500,
        "engram_n_heads": 2,
        "engram_head_dim": 128,
        "engram_pad_token_id": PAD,
        "engram_compressed_vocab_size": 1,
        "num_nextn_predict_layers": 2,
        "dspark_block_size": 5,
        "dspark_noise_token_id": NOISE_ID,
        "dspark_target_layer_ids": [3, 4, 5],
        "dspark_markov_rank": 64,
        "dspark_n_routed_experts": 4,
        "dspark_num_experts_per_tok": 2,
    }


def _vision() -> dict[str, Any]:
    return {
        "model_type": "deepseek_v41_vision",
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 2,
        "intermediate_size": 128,
        "patch_size": 14,
        "rope_theta": 10000,
        "downsample_ratio": 3,
        "max_image_tokens": 64,
        "min_pixels": 3136,
        "max_wh_ratio": None,
    }

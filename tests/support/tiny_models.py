"""Tiny random checkpoints of every dense family, as Hugging Face tensors and directories. Test helper."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

BASE: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {**BASE, "architectures": ["LlamaForCausalLM"], "tie_word_embeddings": True},
    "llama-untied-scaled": {**BASE, "architectures": ["LlamaForCausalLM"], "rope_scaling": LLAMA3_ROPE},
    "llama-linear": {
        **BASE,
        "architectures": ["LlamaForCausalLM"],
        "rope_scaling": {"type": "linear", "factor": 4.0},
    },
    "qwen2": {
        **BASE,
        "architectures": ["Qwen2ForCausalLM"],
        "sliding_window": 4,
        "use_sliding_window": False,
    },
    "qwen2-sliding": {
        **BASE,
        "architectures": ["Qwen2ForCausalLM"],
        "use_sliding_window": True,
        "sliding_window": 5,
        "max_window_layers": 1,
    },
    "qwen3": {**BASE, "architectures": ["Qwen3ForCausalLM"], "head_dim": 16, "tie_word_embeddings": True},
    "gemma3": {
        **BASE,
        "architectures": ["Gemma3ForCausalLM"],
        "num_hidden_layers": 7,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "sliding_window": 6,
        "sliding_window_pattern": 3,
        "query_pre_attn_scalar": 10,
        "hidden_activation": "gelu_pytorch_tanh",
    },
}


def random_tensors(config: dict[str, Any], seed: int = 0) -> dict[str, Tensor]:
    """Weights under Hugging Face names, scaled so that logits are of order one."""
    generator = torch.Generator().manual_seed(seed)
    architecture = config["architectures"][0]
    gemma = architecture.startswith("Gemma3")

    def matrix(rows: int, columns: int) -> Tensor:
        return torch.randn(rows, columns, generator=generator) / columns**0.5

    def norm(size: int) -> Tensor:
        return 0.3 * torch.randn(size, generator=generator) + (0.0 if gemma else 1.0)

    hidden, inner = config["hidden_size"], config["intermediate_size"]
    head_dim = config.get("head_dim", hidden // config["num_attention_heads"])
    rows = {"q": config["num_attention_heads"] * head_dim}
    rows["k"] = rows["v"] = config["num_key_value_heads"] * head_dim
    tensors = {
        "model.embed_tokens.weight": matrix(config["vocab_size"], hidden),
        "model.norm.weight": norm(hidden),
    }
    if not config.get("tie_word_embeddings", gemma):
        tensors["lm_head.weight"] = matrix(config["vocab_size"], hidden)
    for index in range(config["num_hidden_layers"]):
        layer: dict[str, Tensor] = {f"self_attn.{p}_proj.weight": matrix(rows[p], hidden) for p in "qkv"}
        layer["self_attn.o_proj.weight"] = matrix(hidden, rows["q"])
        layer |= {"mlp.gate_proj.weight": matrix(inner, hidden), "mlp.up_proj.weight": matrix(inner, hidden)}
        layer |= {"mlp.down_proj.weight": matrix(hidden, inner), "input_layernorm.weight": norm(hidden)}
        layer["post_attention_layernorm.weight"] = norm(hidden)
        if architecture == "Qwen2ForCausalLM":
            layer |= {f"self_attn.{p}_proj.bias": torch.randn(rows[p], generator=generator) for p in "qkv"}
        if architecture in ("Qwen3ForCausalLM", "Gemma3ForCausalLM"):
            layer |= {f"self_attn.{p}_norm.weight": norm(head_dim) for p in "qk"}
        if gemma:
            layer |= {f"{p}_feedforward_layernorm.weight": norm(hidden) for p in ("pre", "post")}
        tensors |= {f"model.layers.{index}.{name}": tensor for name, tensor in layer.items()}
    return tensors


def write_directory(path: Path, config: dict[str, Any], tensors: dict[str, Tensor], num_shards: int = 1) -> Path:
    """Write ``config.json`` and safetensors, with an index when there are several shards."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    if num_shards == 1:
        save_file(tensors, path / "model.safetensors")
        return path
    names = sorted(tensors)
    home = {name: f"model-{i % num_shards + 1:05}-of-{num_shards:05}.safetensors" for i, name in enumerate(names)}
    for file in set(home.values()):
        save_file({name: tensors[name] for name in names if home[name] == file}, path / file)
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": home}))
    return path

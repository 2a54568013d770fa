"""Writes GGUF files byte by byte, right ones and wrong ones, without the ``gguf`` package. Test helper."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

U32, F32, STRING, ARRAY = 4, 6, 8, 9
ALIGNMENT = 32
# Tensor types of the format that the helper can store as they are.
TYPE_F32, TYPE_F16 = 0, 1


def text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def value_bytes(value: Any) -> bytes:
    """Type number and value."""
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", U32, value)
    if isinstance(value, float):
        return struct.pack("<If", F32, value)
    if isinstance(value, str):
        return struct.pack("<I", STRING) + text(value)
    inner = value_bytes(value[0])[:4]
    return (
        struct.pack("<I", ARRAY) + inner + struct.pack("<Q", len(value)) + b"".join(value_bytes(v)[4:] for v in value)
    )


def gguf_bytes(
    metadata: dict[str, Any], tensors: dict[str, tuple[tuple[int, ...], int, bytes]], version: int = 3
) -> bytes:
    """A whole file. ``tensors``: name -> (row-major shape, type number, raw data)."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    head += b"".join(text(key) + value_bytes(value) for key, value in metadata.items())
    data = b""
    for name, (shape, kind, raw) in tensors.items():
        head += text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape[::-1])
        head += struct.pack("<IQ", kind, len(data))
        data += raw + bytes(-len(raw) % ALIGNMENT)
    return head + bytes(-len(head) % ALIGNMENT) + data


def f32(tensor: Tensor) -> tuple[tuple[int, ...], int, bytes]:
    return tuple(tensor.shape), TYPE_F32, tensor.contiguous().numpy().tobytes()


ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Gemma3ForCausalLM": "gemma3",
}
PARTS = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
GEMMA_PARTS = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
TOP = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def interleave(rows: Tensor, num_heads: int) -> Tensor:
    """Rows of each head from halves to pairs: stored row 2i is row i, stored row 2i + 1 is row i + D/2."""
    head_dim = len(rows) // num_heads
    order = []
    for head in range(num_heads):
        for i in range(head_dim // 2):
            order += [head * head_dim + i, head * head_dim + i + head_dim // 2]
    return rows[order]


def gguf_name(name: str, gemma: bool) -> str:
    if name in TOP:
        return TOP[name]
    _, _, layer, rest = name.split(".", 3)
    part, kind = rest.rsplit(".", 1)
    return f"blk.{layer}.{({**PARTS, **GEMMA_PARTS} if gemma else PARTS)[part]}.{kind}"


def metadata_of(config: dict[str, Any]) -> dict[str, Any]:
    prefix = ARCHITECTURES[config["architectures"][0]]
    own: dict[str, Any] = {
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "block_count": config["num_hidden_layers"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "rope.freq_base": config["rope_theta"],
    }
    if "head_dim" in config:
        own |= {"attention.key_length": config["head_dim"], "attention.value_length": config["head_dim"]}
    if prefix == "gemma3":
        own["attention.sliding_window"] = config["sliding_window"]
    return {"general.architecture": prefix, **{f"{prefix}.{key}": value for key, value in own.items()}}


Encode = Callable[[str, Tensor], tuple[tuple[int, ...], int, bytes]]


def write_gguf(
    path: Path,
    config: dict[str, Any],
    tensors: dict[str, Tensor],
    encode: Encode = lambda _, tensor: f32(tensor),
    **metadata: Any,
) -> Path:
    """The GGUF form of Hugging Face tensors. ``encode(name, rows)`` gives shape, type number and data of each;
    ``metadata`` adds keys (dots as double underscores)."""
    architecture = config["architectures"][0]
    stored = {}
    for name, tensor in tensors.items():
        if architecture == "LlamaForCausalLM" and ".q_proj." in name:
            tensor = interleave(tensor, config["num_attention_heads"])
        if architecture == "LlamaForCausalLM" and ".k_proj." in name:
            tensor = interleave(tensor, config["num_key_value_heads"])
        if architecture == "Gemma3ForCausalLM" and name.endswith("norm.weight"):
            tensor = tensor + 1
        stored[gguf_name(name, architecture == "Gemma3ForCausalLM")] = encode(name, tensor)
    extra = {key.replace("__", "."): value for key, value in metadata.items()}
    rope_factors = extra.pop("rope_freqs.weight", None)
    if rope_factors is not None:
        stored["rope_freqs.weight"] = f32(torch.tensor(rope_factors))
    path.write_bytes(gguf_bytes({**metadata_of(config), **extra}, stored))
    return path

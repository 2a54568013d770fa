"""An independent dense decoder in plain float64 torch: one sequence, full attention matrix, nothing fused.

Written from the published descriptions of the four families. Shares no code with the package; the tests trust
it because it is short.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor


def oracle_logits(config: dict[str, Any], tensors: dict[str, Tensor], ids: list[int]) -> Tensor:
    """Logits (len(ids), vocab) of a whole sequence, float64."""
    w = {name: tensor.double() for name, tensor in tensors.items()}
    kind = config["architectures"][0].removesuffix("ForCausalLM")
    gemma = kind == "Gemma3"
    x = w["model.embed_tokens.weight"][ids]
    if gemma:
        x = x * math.sqrt(config["hidden_size"])

    def norm(x: Tensor, name: str) -> Tensor:
        weight = w[name] + 1 if gemma else w[name]
        return x / (x.pow(2).mean(-1, keepdim=True) + config["rms_norm_eps"]).sqrt() * weight

    for index in range(config["num_hidden_layers"]):
        at = f"model.layers.{index}."
        y = attention(config, kind, index, w, norm(x, at + "input_layernorm.weight"), norm)
        if gemma:
            x = x + norm(y, at + "post_attention_layernorm.weight")
            y = mlp(w, at, norm(x, at + "pre_feedforward_layernorm.weight"), "gelu")
            x = x + norm(y, at + "post_feedforward_layernorm.weight")
        else:
            x = x + y
            x = x + mlp(w, at, norm(x, at + "post_attention_layernorm.weight"), "silu")
    head = w.get("lm_head.weight", w["model.embed_tokens.weight"])
    return norm(x, "model.norm.weight") @ head.T


def mlp(w: dict[str, Tensor], at: str, x: Tensor, activation: str) -> Tensor:
    gate = x @ w[at + "mlp.gate_proj.weight"].T
    if activation == "silu":
        gate = gate / (1 + torch.exp(-gate))
    else:
        gate = 0.5 * gate * (1 + torch.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)))
    return (gate * (x @ w[at + "mlp.up_proj.weight"].T)) @ w[at + "mlp.down_proj.weight"].T


def attention(config: dict[str, Any], kind: str, index: int, w: dict[str, Tensor], x: Tensor, norm: Any) -> Tensor:
    at = f"model.layers.{index}.self_attn."
    num_heads, num_kv = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config.get("head_dim", config["hidden_size"] // num_heads)
    length = len(x)

    def heads(part: str, count: int) -> Tensor:
        y = x @ w[f"{at}{part}_proj.weight"].T
        if kind == "Qwen2":
            y = y + w[f"{at}{part}_proj.bias"]
        return y.view(length, count, head_dim)

    q, k, v = heads("q", num_heads), heads("k", num_kv), heads("v", num_kv)
    if kind in ("Qwen3", "Gemma3"):
        q, k = norm(q, at + "q_norm.weight"), norm(k, at + "k_norm.weight")
    window = window_of(config, kind, index)
    base = config["rope_local_base_freq"] if kind == "Gemma3" and window else config["rope_theta"]
    scaling = None if kind == "Gemma3" and window else config.get("rope_scaling")
    q, k = rotate(q, base, scaling), rotate(k, base, scaling)
    k, v = (t.repeat_interleave(num_heads // num_kv, dim=1) for t in (k, v))
    scale = config.get("query_pre_attn_scalar", head_dim) ** -0.5
    scores = torch.einsum("ihd,jhd->hij", q, k) * scale
    i, j = torch.arange(length)[:, None], torch.arange(length)[None, :]
    visible = (j <= i) & ((i - j < window) if window else True)
    probabilities = scores.masked_fill(~visible, -math.inf).softmax(-1)
    seen = torch.einsum("hij,jhd->ihd", probabilities, v).reshape(length, -1)
    return seen @ w[at + "o_proj.weight"].T


def window_of(config: dict[str, Any], kind: str, index: int) -> int:
    if kind == "Gemma3":
        return 0 if (index + 1) % config["sliding_window_pattern"] == 0 else config["sliding_window"]
    if config.get("use_sliding_window") and index >= config["max_window_layers"]:
        return config["sliding_window"]
    return 0


def rotate(x: Tensor, base: float, scaling: dict[str, Any] | None) -> Tensor:
    """Rotary positions as complex multiplication: dims (i, i + D/2) are one complex number."""
    half = x.shape[-1] // 2
    angles = torch.arange(len(x)).double()[:, None, None] * torch.tensor(frequencies(base, half, scaling)).double()
    z = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat((z.real, z.imag), dim=-1)


def frequencies(base: float, half: int, scaling: dict[str, Any] | None) -> list[float]:
    plain = [base ** (-i / half) for i in range(half)]
    if scaling is None:
        return plain
    if scaling.get("type") == "linear":
        return [f / scaling["factor"] for f in plain]
    return [llama3(f, scaling) for f in plain]


def llama3(frequency: float, s: dict[str, Any]) -> float:
    wavelength = 2 * math.pi / frequency
    original = s["original_max_position_embeddings"]
    if wavelength < original / s["high_freq_factor"]:
        return frequency
    if wavelength > original / s["low_freq_factor"]:
        return frequency / s["factor"]
    smooth = (original / wavelength - s["low_freq_factor"]) / (s["high_freq_factor"] - s["low_freq_factor"])
    return (1 - smooth) * frequency / s["factor"] + smooth * frequency

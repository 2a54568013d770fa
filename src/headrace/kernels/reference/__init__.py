"""The reference backend: every op in plain torch, written to be read and compared against.

It is held to tolerances, never to bits, and never to speed. It must not import another backend.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import activation, attention, cache, fused, matmul, norms, records, rope, sampling


def build() -> dict[str, Callable[..., Any]]:
    """Every op of the interface by its name in ``Ops``."""
    return {
        "pack_weight": matmul.pack_weight,
        "linear": matmul.linear,
        "norm_linear": fused.norm_linear,
        "gated_linear": fused.gated_linear,
        "norm_argmax": fused.norm_argmax,
        "embedding": matmul.embedding,
        "rms_norm": norms.rms_norm,
        "add_rms_norm": norms.add_rms_norm,
        "rope": rope.rope,
        "silu_mul": activation.silu_mul,
        "gelu_tanh_mul": activation.gelu_tanh_mul,
        "write_kv": cache.write_kv,
        "qkv_to_cache": cache.qkv_to_cache,
        "gather_rows": matmul.gather_rows,
        "axpy": activation.axpy,
        "paged_attention": attention.paged_attention,
        "latent_attention": records.latent_attention,
        "choose_entries": records.choose_entries,
        "apply_rules": sampling.apply_rules,
        "sample": sampling.sample,
        "gather_logprobs": sampling.gather_logprobs,
    }

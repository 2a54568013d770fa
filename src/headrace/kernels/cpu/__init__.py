"""The CPU backend: kernels of the ``_kernels`` extension behind the op interface.

The wrappers only make room for results and put arguments in order; sizes and indices are checked by the
extension before any work (TypeError, ValueError). Batch invariant to the bit.

Tensors go over as DLPack capsules: the extension accepts tensors too, but asking a tensor for its capsule
through the array protocol costs several times as much, on every call of every layer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import activation, attention, cache, fused, matmul, norms, records, rope, sampling


def build() -> dict[str, Callable[..., Any]]:
    """Ops this backend serves, by name."""
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

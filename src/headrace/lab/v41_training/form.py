"""The pieces that backbone and draft layers have in common, in training form: whole sequences, dense masks, autograd.

Rows are (T, ...), T = sequences x length; an attention sub-layer folds them back. Says the same as the serving path's
``layer``, ``attention`` and ``experts``; products may run in bfloat16, which serving's float32 mode does not do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from headrace.models.deepseek_v41 import quantise
from headrace.models.deepseek_v41.config import V41Config
from headrace.models.deepseek_v41.config_parts import MoEConfig
from headrace.models.deepseek_v41.mixing import split_mix
from headrace.models.deepseek_v41.tensor_ops import inverse_frequencies, rotary_table, rotate_tail

from .weights import TrainedWeights


@dataclass(slots=True)
class Form:
    """What every piece needs. ``loads``: per gate the tokens of each expert in the last forward, for balancing."""

    config: V41Config
    weights: TrainedWeights
    narrow: bool = True  # products in bfloat16
    loads: dict[str, Tensor] = field(default_factory=dict)

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        """``a @ b`` in float32, or in bfloat16 and back."""
        if not self.narrow:
            return a @ b
        return (a.to(torch.bfloat16) @ b.to(torch.bfloat16)).to(torch.float32)

    def linear(self, x: Tensor, name: str) -> Tensor:
        """(..., K) through ``name.weight`` (N, K)."""
        return self.product(x, self.weights(f"{name}.weight").t())

    def norm(self, x: Tensor, name: str) -> Tensor:
        return self.bare_norm(x) * self.weights(f"{name}.weight")

    def bare_norm(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.config.norm_eps)


class Rotary:
    """Both tables of the family, for positions below ``length``."""

    def __init__(self, config: V41Config, length: int) -> None:
        plain = inverse_frequencies(config.rope_theta, config.rope_dims, None)
        stretched = inverse_frequencies(config.compress_rope_theta, config.rope_dims, config.yarn)
        self.window, self.compressed = rotary_table(plain, length), rotary_table(stretched, length)


def block(
    form: Form, at: str, moe: MoEConfig, trunk: Tensor, pre: Tensor, attend: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """Both sub-layers of the layer whose names start with ``at``."""
    trunk, pre = sub_layer(form, f"{at}hc_attn_", f"{at}attn_norm", trunk, pre, attend)
    return sub_layer(form, f"{at}hc_ffn_", f"{at}ffn_norm", trunk, pre, lambda x: experts(form, f"{at}ffn.", moe, x))


def sub_layer(
    form: Form, mix_at: str, norm: str, trunk: Tensor, pre: Tensor, run: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    config, w = form.config, form.weights
    projected = form.bare_norm(trunk.flatten(1)) @ w(f"{mix_at}fn").t()
    mix = split_mix(
        projected, w(f"{mix_at}scale"), w(f"{mix_at}base"), config.streams, config.sinkhorn_rounds, config.mix_eps
    )
    output = run(form.norm(collapse(trunk, pre), norm))
    carried = mix.comb.transpose(1, 2) @ trunk
    return torch.addcmul(carried, mix.post.unsqueeze(-1), output.unsqueeze(1)), mix.pre


def collapse(trunk: Tensor, pre: Tensor) -> Tensor:
    return (pre.unsqueeze(1) @ trunk).squeeze(1)


def experts(form: Form, at: str, moe: MoEConfig, x: Tensor) -> Tensor:
    """All experts on all rows, those not chosen with weight zero: quicker than gathering at these sizes."""
    score = torch.nn.functional.softplus(x @ form.weights(f"{at}gate.weight").t()).sqrt()
    ranked = (score.detach() + form.weights(f"{at}gate.bias")).sort(dim=1, descending=True, stable=True).indices
    chosen = torch.zeros_like(score).scatter_(1, ranked[:, : moe.num_chosen], 1.0)
    form.loads[f"{at}gate.bias"] = chosen.sum(0)
    weight = moe.scaling * chosen * score / ((chosen * score).sum(1, keepdim=True) + 1e-20)
    numbers = range(moe.num_experts)
    inner = _inner(form, x, *(torch.cat([form.weights(f"{at}experts.{n}.{m}.weight") for n in numbers]) for m in W13))
    inner = (inner.unflatten(1, (moe.num_experts, -1)) * weight.unsqueeze(2)).flatten(1)
    down = torch.cat([form.weights(f"{at}experts.{n}.w2.weight") for n in numbers], dim=1)
    shared = f"{at}shared_experts."
    alone = _inner(form, x, *(form.weights(f"{shared}{m}.weight") for m in W13))
    return form.product(inner, down.t()) + form.linear(alone, f"{shared}w2")


W13 = ("w1", "w3")


def _inner(form: Form, x: Tensor, gate: Tensor, up: Tensor) -> Tensor:
    limit = form.config.swiglu_limit
    g, u = form.product(x, torch.cat((gate, up)).t()).chunk(2, dim=1)
    return torch.nn.functional.silu(g.clamp(max=limit)) * u.clamp(-limit, limit)


def query_latent(form: Form, at: str, x: Tensor) -> Tensor:
    return form.norm(form.linear(x, f"{at}wq_a"), f"{at}q_norm")


def heads_of(form: Form, at: str, latent: Tensor, rotary: Tensor, positions: Tensor) -> Tensor:
    """(T, heads, head_dim), rotated."""
    query = form.linear(latent, f"{at}wq_b").unflatten(1, (form.config.num_heads, -1))
    return rotate_tail(query, rotary, positions)


def window_keys(form: Form, at: str, x: Tensor, rotary: Tensor, positions: Tensor) -> Tensor:
    """(T, head_dim) as the window's records keep them."""
    latent = form.norm(form.linear(x, f"{at}wkv"), f"{at}kv_norm")
    return form.weights.through(rotate_tail(latent, rotary, positions), quantise.round_mxfp8)


def attend(form: Form, query: Tensor, keys: Tensor, visible: Tensor, sink: Tensor) -> tuple[Tensor, Tensor]:
    """(B, S, heads, D), (B, n, D), (B or 1, S, n) bool, (heads,) -> (B, S, heads, D) and weights (B, S, heads, n)."""
    b, s, heads, _ = query.shape
    scores = form.product(query.flatten(1, 2), keys.transpose(1, 2)) * query.shape[-1] ** -0.5
    masked = scores.unflatten(1, (s, heads)).masked_fill(~visible.unsqueeze(2), -torch.inf)
    with_sink = torch.cat((masked, sink.view(1, 1, heads, 1).expand(b, s, heads, 1)), dim=3)
    weights = with_sink.softmax(3)[..., :-1]
    return form.product(weights.flatten(1, 2), keys).unflatten(1, (s, heads)), weights


def project_out(form: Form, at: str, seen: Tensor, rotary: Tensor, positions: Tensor) -> Tensor:
    """(T, heads, head_dim) -> (T, hidden)."""
    groups = form.config.o_groups
    seen = rotate_tail(seen, rotary, positions, back=True).unflatten(1, (groups, -1)).flatten(2)
    squeeze = form.weights(f"{at}wo_a.weight").unflatten(0, (groups, -1))  # (groups, o_rank, heads * head_dim)
    squeezed = form.product(seen.transpose(0, 1), squeeze.transpose(1, 2)).transpose(0, 1).flatten(1)
    return form.linear(squeezed, f"{at}wo_b")

"""Manifold-constrained hyper-connections: how parallel residual streams feed a sub-layer and take its output back.

Pure functions. One sub-layer reads ``sum_i pre[i] * trunk[i]``, where ``pre`` was computed by the sub-layer *before* it
(at the start: stream 0 alone), and computes from the same trunk its own output weights and the next ``pre``. Shifting
this by one sub-layer still gives fluent-looking activations: tests must use distinct streams.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .tensor_ops import sigmoid, sum_over

POST_FACTOR = 2.0


class Mix(NamedTuple):
    """``pre`` (T, m) for the next sub-layer; ``post`` (T, m) and ``comb`` (T, m, m), [source, target], for this one."""

    pre: Tensor
    post: Tensor
    comb: Tensor


def first_pre(num_tokens: int, streams: int) -> Tensor:
    pre = torch.zeros(num_tokens, streams)
    pre[:, 0] = 1.0
    return pre


def collapse(trunk: Tensor, pre: Tensor) -> Tensor:
    """(T, m, H), (T, m) -> (T, H)."""
    return sum_over(trunk * pre.unsqueeze(-1), 1)


def split_mix(mix: Tensor, scale: Tensor, base: Tensor, streams: int, rounds: int, eps: float) -> Mix:
    """``mix`` (T, 2m + m^2), the projected trunk, as weights. ``scale`` (3,), ``base`` (2m + m^2,)."""
    pre, post, comb = (mix * _spread(scale, streams) + base).split((streams, streams, streams**2), dim=1)
    matrix = balance(comb.unflatten(1, (streams, streams)), rounds, eps)
    return Mix(sigmoid(pre) + eps, POST_FACTOR * sigmoid(post), matrix)


def _spread(scale: Tensor, streams: int) -> Tensor:
    one, two, three = scale.unbind()
    return torch.cat((one.expand(streams), two.expand(streams), three.expand(streams**2)))


def balance(logits: Tensor, rounds: int, eps: float) -> Tensor:
    """Sinkhorn: (T, m, m) -> nearly doubly stochastic. Rows are softmaxed first; the last division is by columns."""
    raised = torch.exp((logits - logits.amax(-1, keepdim=True)).contiguous())
    x = raised / sum_over(raised, 2).unsqueeze(2) + eps
    x = x / (sum_over(x, 1).unsqueeze(1) + eps)
    for _ in range(rounds - 1):
        x = x / (sum_over(x, 2).unsqueeze(2) + eps)
        x = x / (sum_over(x, 1).unsqueeze(1) + eps)
    return x


def write_back(trunk: Tensor, output: Tensor, mix: Mix) -> Tensor:
    """New trunk (T, m, H): ``post[o] * output + sum_i comb[i, o] * trunk[i]``."""
    carried = sum_over(mix.comb.unsqueeze(-1) * trunk.unsqueeze(2), 1)  # (T, source, target, H) summed over sources
    return mix.post.unsqueeze(-1) * output.unsqueeze(1) + carried

"""The forward pass of a BERT encoder (Devlin et al. 2018), one text at a time.

One text at a time on purpose: a vector depends on its own text alone, to the bit, whatever else is asked for. Matrix
products go through ``Ops``; the rest is torch on one text's rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from headrace.kernels.ops import Ops, Weight

from .config import BertConfig

ACTIVATION: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
}


@dataclass(frozen=True, slots=True)
class Linear:
    """``weight`` (N, K) packed, ``bias`` (N,)."""

    weight: Weight
    bias: Tensor


@dataclass(frozen=True, slots=True)
class Norm:
    """Scale and shift of a layer norm, (hidden,) each."""

    weight: Tensor
    bias: Tensor


@dataclass(frozen=True, slots=True)
class Tables:
    """``word`` (V, hidden); ``position`` (positions, hidden), the first segment's type added."""

    word: Tensor
    position: Tensor
    norm: Norm


@dataclass(frozen=True, slots=True)
class Layer:
    qkv: Linear
    output: Linear
    attention_norm: Norm
    inner: Linear
    outer: Linear
    norm: Norm


class BertModel:
    """``ops`` must be the backend that packed the weights."""

    def __init__(self, config: BertConfig, tables: Tables, layers: Sequence[Layer], ops: Ops) -> None:
        self.config, self._tables, self._layers, self._ops = config, tables, layers, ops

    @torch.inference_mode()
    def hidden(self, ids: Sequence[int]) -> Tensor:
        """(T, hidden) of one text's ids; 1 <= T <= ``max_positions``, which the caller has checked."""
        tables = self._tables
        x = tables.word[torch.tensor(ids)] + tables.position[: len(ids)]
        x = self._norm(x, tables.norm)
        for layer in self._layers:
            x = self._norm(x + self._linear(self._attention(x, layer), layer.output), layer.attention_norm)
            inner = ACTIVATION[self.config.activation](self._linear(x, layer.inner))
            x = self._norm(x + self._linear(inner, layer.outer), layer.norm)
        return x

    def _linear(self, x: Tensor, linear: Linear) -> Tensor:
        return self._ops.linear(x, linear.weight, linear.bias).clone()  # an op may reuse the room of its results

    def _norm(self, x: Tensor, norm: Norm) -> Tensor:
        return F.layer_norm(x, (self.config.hidden_size,), norm.weight, norm.bias, self.config.norm_eps)

    def _attention(self, x: Tensor, layer: Layer) -> Tensor:
        """Every token sees every token: softmax(q k^T / sqrt(d)) v per head."""
        heads, dim, count = self.config.num_heads, self.config.head_dim, len(x)
        q, k, v = self._linear(x, layer.qkv).view(count, 3, heads, dim).permute(1, 2, 0, 3)
        shares = torch.softmax(q @ k.transpose(1, 2) / math.sqrt(dim), dim=-1)
        return torch.matmul(shares, v).transpose(0, 1).reshape(count, heads * dim)

"""The attention sub-layer: a window of own keys and the selected rows of a shared compressed KV, in one softmax.

Keys are values: one latent per position, rotary dims included, which is why outputs are rotated back by the query's
position. A compressed row may repeat what the window holds; both count. The op reads records where they lie; keys that
are in no cache, those of a draft block, go through ``attend``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.kernels.ops import Ops

from .compression import compress
from .indexing import select
from .params import AttentionParams, LayerParams
from .quantise import pack_mxfp8
from .step import Program, Step
from .tensor_ops import rotate_tail


def attend(ops: Ops, query: Tensor, keys: Tensor, visible: Tensor, sink: Tensor) -> Tensor:
    """(T, heads, D), (n, D), (T, n) bool, (heads,) -> (T, heads, D).

    ``sink`` is a logit of its own per head, neither scaled nor rotated: it takes weight and gives no value. Products
    are ops that add in key order: a key that a query does not see, whose weight is exactly zero, changes no bit.
    """
    scores = ops.linear(query.flatten(0, 1), ops.pack_weight(keys), None).unflatten(0, query.shape[:2])
    scores = (scores * query.shape[-1] ** -0.5).masked_fill(~visible.unsqueeze(1), -torch.inf)
    top = torch.maximum(scores.amax(2), sink)
    weights = torch.exp((scores - top.unsqueeze(2)).contiguous())
    # A column of ones behind the values: the denominator is summed in the same order as the rest.
    columns = torch.cat((keys, torch.ones(len(keys), 1)), dim=1).t().contiguous()
    sums = ops.linear(weights.flatten(0, 1), ops.pack_weight(columns), None).unflatten(0, query.shape[:2])
    total = sums[..., -1] + torch.exp((sink - top).contiguous())
    return sums[..., :-1] / total.unsqueeze(2)


def attention(step: Step, layer: int, params: LayerParams, hidden: Tensor) -> Tensor:
    """(T, hidden), normed -> (T, hidden). Writes what the layer owns of the caches, then reads."""
    coded = step.arithmetic.coded(hidden)
    latent = query_latent(step, params.attention, coded)
    coded_latent = step.arithmetic.coded(latent)
    query = heads_of(step, params, coded_latent, step.positions)
    window = step.records.window[layer]
    step.pages.write(window, step.slice_of, step.positions, window_record(step, params, coded, step.positions))
    if params.compressor is not None and step.compressed != layer:
        compress(step, layer, params, hidden)
    if params.indexer is not None:
        select(step, layer, params, coded_latent, hidden)
    return project_out(step, params, _seen(step, layer, params, query), step.positions)


def _seen(step: Step, layer: int, params: LayerParams, query: Tensor) -> Tensor:
    """(T, heads, head_dim) -> the same: what queries see of the layer's window and of the rows chosen for it."""
    topology, pages = step.config.topology, step.pages
    shared = pages.records(step.records.kv[topology.kv_sources[layer]]) if topology.ratios[layer] else None
    return step.arithmetic.ops.latent_attention(
        query,
        step.query_start(),
        step.seq_lens(),
        step.window_floors(layer),
        step.config.window,
        pages.records(step.records.window[layer]),
        shared,
        step.config.narrow_kv,
        None if shared is None else step.selected,
        params.attention.sink,
    )


def query_latent(step: Program, params: AttentionParams, coded: Tensor) -> Tensor:
    """(T, q_rank): what queries of attention and indexer are made of. ``coded``: hidden states, rounded."""
    return step.arithmetic.norm(step.arithmetic.linear(coded, params.q_down), params.q_norm, step.config.norm_eps)


def heads_of(step: Program, params: LayerParams, coded_latent: Tensor, positions: Tensor) -> Tensor:
    """(T, heads, head_dim), rotated."""
    query = step.arithmetic.linear(coded_latent, params.attention.q_up).unflatten(1, (step.config.num_heads, -1))
    return step.arithmetic.stored(rotate_tail(query, params.rotary, positions))


def window_record(step: Program, params: LayerParams, coded: Tensor, positions: Tensor) -> Tensor:
    """(T, bytes): the rotated latent of each token as the window keeps it. ``coded``: hidden states, rounded."""
    latent = step.arithmetic.linear(coded, params.attention.kv)
    latent = step.arithmetic.norm(latent, params.attention.kv_norm, step.config.norm_eps)
    return pack_mxfp8(step.arithmetic.stored(rotate_tail(latent, params.rotary, positions)))


def project_out(step: Program, params: LayerParams, seen: Tensor, positions: Tensor) -> Tensor:
    """(T, heads, head_dim) -> (T, hidden): rotated back, squeezed per group of heads, joined."""
    seen = step.arithmetic.stored(rotate_tail(step.arithmetic.stored(seen), params.rotary, positions, back=True))
    groups = seen.unflatten(1, (step.config.o_groups, -1)).flatten(2).unbind(1)
    squeezed = [step.arithmetic.linear(x, w) for x, w in zip(groups, params.attention.out_groups)]
    return step.arithmetic.coded_linear(torch.cat(squeezed, dim=1), params.attention.out_up)

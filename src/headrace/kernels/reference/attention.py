"""Attention over a paged cache in torch, one slice at a time, the whole softmax at once."""

from __future__ import annotations

import torch
from torch import Tensor

from ..kv_rows import decode


def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    scale: float,
    window: int,
) -> Tensor:
    """q (T, Hq, D) -> (T, Hq, D); caches, tables and visibility as ``Ops.paged_attention`` says.

    Only positions that some row of a slice sees are gathered, so null and foreign blocks may hold anything.
    Rows beyond the last slice (padding) come back as zeros.
    """
    out = torch.zeros_like(q)
    starts = query_start_loc.tolist()
    for s, seq_len in enumerate(seq_lens.tolist()):
        begin, end = starts[s], starts[s + 1]
        if begin == end:
            continue
        first = seq_len - (end - begin)
        low = max(0, first - window + 1) if window > 0 else 0
        seen = torch.arange(low, seq_len)
        keys = _gather(k_cache, block_table[s], seen)
        values = _gather(v_cache, block_table[s], seen)
        mask = _visible(torch.arange(first, seq_len), seen, window)
        out[begin:end] = _attend(q[begin:end], keys, values, mask, scale)
    return out


def _gather(cache: Tensor, blocks: Tensor, positions: Tensor) -> Tensor:
    """Rows of one sequence: (P, Hkv, D)."""
    block_size = cache.shape[2]
    return decode(cache[blocks[positions // block_size].long(), :, positions % block_size])


def _visible(rows: Tensor, columns: Tensor, window: int) -> Tensor:
    """(rows, columns) bool: causal, and within the window when there is one."""
    behind = rows[:, None] - columns[None, :]
    mask = behind >= 0
    return mask & (behind < window) if window > 0 else mask


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.einsum("thd,phd->htp", q, k) * scale
    weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
    return torch.einsum("htp,phd->thd", weights, v)

"""Attention and choice over byte records in torch: keys of a few rows are gathered, decoded and masked, and one plain
softmax, or one stable sort, does the rest."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor

from ..ops import PagedRecords
from ..record_formats import unpack_kv4, unpack_mxfp4, unpack_mxfp8
from ..selection import best_blocks, best_entries, entries_of, members

ROWS = 64  # of a slice at once: scores of all of them with all their keys are in memory


def _read(records: PagedRecords, s: int, rows: Tensor) -> Tensor:
    """(n, width) bytes: records ``rows`` (n,) of slice ``s``."""
    part = records.blocks[:, records.offset : records.offset + records.rows * records.width]
    blocks = records.table[s].long()[rows // records.rows]
    return part.unflatten(1, (records.rows, records.width))[blocks, rows % records.rows]


def _tiles(query_start_loc: Tensor) -> Iterator[tuple[int, int, int, int]]:
    """Slice, first row and end of each tile, and how many rows of the slice follow its first one."""
    starts = query_start_loc.tolist()
    for s, (begin, end) in enumerate(pairwise(starts)):
        for at in range(begin, end, ROWS):
            yield s, at, min(at + ROWS, end), end - at


def latent_attention(
    q: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    floors: Tensor,
    reach: int,
    window: PagedRecords,
    shared: PagedRecords | None,
    narrow: bool,
    chosen: Tensor | None,
    sink: Tensor,
) -> Tensor:
    """q (T, H, D) -> (T, H, D); see ``Ops.latent_attention``."""
    out = torch.empty_like(q)
    for s, at, end, left in _tiles(query_start_loc):
        last = int(seq_lens[s])
        own = torch.arange(last - left, last - left + end - at).unsqueeze(1)
        held = torch.arange(max(0, int(floors[s]), last - left - reach + 1), max(last, int(floors[s])))
        keys, visible = [unpack_mxfp8(_read(window, s, held))], [(held <= own) & (held > own - reach)]
        if shared is not None and chosen is not None:
            mine = members(chosen[at:end], shared.table.shape[1] * shared.rows)
            rows = mine.any(0).nonzero().squeeze(1)
            keys.append((unpack_kv4 if narrow else unpack_mxfp8)(_read(shared, s, rows)))
            visible.append(mine[:, rows])
        out[at:end] = _attend(q[at:end], torch.cat(keys), torch.cat(visible, dim=1), sink)
    return out


def _attend(q: Tensor, keys: Tensor, visible: Tensor, sink: Tensor) -> Tensor:
    """(T, H, D), (n, D), (T, n) bool, (H,) -> (T, H, D)."""
    scores = torch.einsum("thd,nd->thn", q, keys) * q.shape[-1] ** -0.5
    scores = scores.masked_fill(~visible.unsqueeze(1), -torch.inf)
    scores = torch.cat((scores, sink.expand(len(q), -1).unsqueeze(2)), dim=2)
    return torch.einsum("thn,nd->thd", scores.softmax(-1)[..., :-1], keys)


def choose_entries(
    q: Tensor,
    weights: Tensor,
    query_start_loc: Tensor,
    visible: Tensor,
    codes: PagedRecords,
    scales: PagedRecords,
    count: int,
    rounded: bool,
    among: Tensor | None,
    num_blocks: int,
    block_size: int,
) -> tuple[Tensor, Tensor]:
    """Entries (T, count) and blocks (T, num_blocks), int32; see ``Ops.choose_entries``."""
    entries = torch.full((len(q), count), -1, dtype=torch.int32)
    blocks = torch.full((len(q), num_blocks), -1, dtype=torch.int32)
    for s, at, end, _ in _tiles(query_start_loc):
        seen = visible[at:end].long()
        rows = torch.arange(int(seen.max()))
        keys = unpack_mxfp4(_read(codes, s, rows), _read(scales, s, rows))
        scores = _scores(q[at:end], weights[at:end], keys)
        scores = scores.to(torch.bfloat16).to(torch.float32) if rounded else scores
        allowed = None if among is None else entries_of(among[at:end], block_size, len(rows))
        entries[at:end] = best_entries(scores, seen, count, allowed)
        if num_blocks:
            blocks[at:end] = best_blocks(scores, seen, num_blocks, block_size)
    return entries, blocks


def _scores(q: Tensor, weights: Tensor, keys: Tensor) -> Tensor:
    """(T, n). Heads are added in their order: with few of them, ties are common."""
    total = torch.zeros(len(q), len(keys))
    for head in range(q.shape[1]):
        total = total + (q[:, head] @ keys.T).clamp(min=0.0) * weights[:, head : head + 1]
    return total

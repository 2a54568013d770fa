"""The indexer at work: which compressed entries the step's rows read, in this layer and those that follow its choice.

The rules of choosing are in ``selection``; here is who chooses by whose keys, and among what. Keys always come from the
layer that owns them, as they are now: never from a step before.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .params import LayerParams
from .quantise import pack_mxfp4, unpack_mxfp4
from .selection import best_blocks, best_entries, entries_of, index_scores
from .step import Program, Slice, Step
from .tensor_ops import rotate_tail

QUERY_TILE = 64  # queries scored at once: scores of all heads and entries are in memory


class Choice(NamedTuple):
    """entries (rows, K), ascending; blocks (rows, C): the candidates that later index layers choose among, or (rows, 0)
    where this layer is not their source."""

    entries: Tensor
    blocks: Tensor


def select(step: Step, layer: int, params: LayerParams, coded_latent: Tensor, hidden: Tensor) -> None:
    """Chooses entries for this layer and those after it, up to the next index layer."""
    query, weights = index_query(step, params, coded_latent, hidden, step.positions)
    visible = (step.positions + 1) // step.config.topology.ratios[layer]
    chosen = []
    for s in step.slices:
        among = step.candidates[s.number] if step.config.topology.chooses_among_candidates(layer) else None
        keys = index_keys(step, layer, s)
        chosen.append(choose(step, layer, query[s.rows], weights[s.rows], keys, visible[s.rows], among))
    step.selected = [choice.entries for choice in chosen]
    if is_candidate_source(step, layer):
        step.candidates = [choice.blocks for choice in chosen]


def index_query(
    step: Program, params: LayerParams, coded_latent: Tensor, hidden: Tensor, positions: Tensor
) -> tuple[Tensor, Tensor]:
    """Rounded queries (T, index_heads, index_dim), made of what attention queries are, and weights (T, index_heads)."""
    assert params.indexer is not None
    config, arithmetic = step.config, step.arithmetic
    query = arithmetic.linear(coded_latent, params.indexer.query).unflatten(1, (config.index_heads, -1))
    query = unpack_mxfp4(*pack_mxfp4(arithmetic.stored(rotate_tail(query, params.rotary, positions))))
    # A positive constant, as the published program has it: it matters to rounding only.
    scale = config.index_dim**-0.5 * config.index_heads**-0.5
    return query, arithmetic.linear(hidden, params.indexer.head_weights) * scale


def index_keys(step: Step, layer: int, s: Slice) -> Tensor:
    """All keys (n, index_dim) of a sequence that ``layer`` chooses by."""
    source = step.config.topology.index_key_sources[layer]
    rows = torch.arange(s.last // step.config.topology.ratios[layer])
    codes, scales = (
        step.read(table[source], s, rows) for table in (step.records.index_codes, step.records.index_scales)
    )
    return unpack_mxfp4(codes, scales)


def is_candidate_source(step: Program, layer: int) -> bool:
    candidates = step.config.topology.candidates
    return candidates is not None and layer == candidates.source


def choose(
    step: Program, layer: int, query: Tensor, weights: Tensor, keys: Tensor, visible: Tensor, among: Tensor | None
) -> Choice:
    """What queries (T, index_heads, index_dim) pick of keys (n, index_dim), ``visible`` (T,) of them, and if given only
    of the blocks ``among`` (T, C)."""
    packed = step.arithmetic.ops.pack_weight(keys) if len(keys) else None
    choices = []
    for at in range(0, len(query), QUERY_TILE):
        tile = slice(at, at + QUERY_TILE)
        scores = step.arithmetic.stored(index_scores(step.arithmetic.ops, query[tile], weights[tile], packed))
        choices.append(_choose_tile(step, layer, scores, visible[tile], None if among is None else among[tile]))
    return Choice(*map(torch.cat, zip(*choices)))


def _choose_tile(step: Program, layer: int, scores: Tensor, visible: Tensor, among: Tensor | None) -> Choice:
    candidates, count = step.config.topology.candidates, step.config.index_topk
    if among is not None:
        assert candidates is not None
        allowed = entries_of(among, candidates.block_size, scores.shape[1])
        return Choice(best_entries(scores, visible, count, allowed), among[:, :0])
    blocks = torch.empty(len(scores), 0, dtype=torch.int64)
    if candidates is not None and is_candidate_source(step, layer):
        blocks = best_blocks(scores, visible, candidates.num_blocks, candidates.block_size)
    return Choice(best_entries(scores, visible, count), blocks)

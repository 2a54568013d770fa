"""The indexer at work: which compressed entries the step's rows read, in this layer and those that follow its choice.

The rules of choosing are those of the op ``choose_entries``; here is who chooses by whose keys, and among what. Keys
always come from the layer that owns them, as they are now: never from a step before.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .params import LayerParams
from .quantise import pack_mxfp4, unpack_mxfp4
from .step import Program, Slice, Step
from .tensor_ops import rotate_tail


class Choice(NamedTuple):
    """Both int32, ascending, -1 behind them: entries (T, K); blocks (T, C), the candidates that later index layers
    choose among, or (T, 0) where this layer is not their source."""

    entries: Tensor
    blocks: Tensor


def select(step: Step, layer: int, params: LayerParams, coded_latent: Tensor, hidden: Tensor) -> None:
    """Chooses entries for this layer and those after it, up to the next index layer."""
    query, weights = index_query(step, params, coded_latent, hidden, step.positions)
    among = step.candidates if step.config.topology.chooses_among_candidates(layer) else None
    choice = choose(step, layer, query, weights, step.positions, step.query_start(), among)
    step.selected = choice.entries
    if is_candidate_source(step, layer):
        step.candidates = choice.blocks


def is_candidate_source(step: Program, layer: int) -> bool:
    candidates = step.config.topology.candidates
    return candidates is not None and layer == candidates.source


def choose(
    step: Step,
    layer: int,
    query: Tensor,
    weights: Tensor,
    positions: Tensor,
    query_start: Tensor,
    among: Tensor | None,
) -> Choice:
    """What queries (T, index_heads, index_dim) at ``positions`` (T,), cut into the step's sequences by ``query_start``
    (S + 1,), pick of the stored keys, and if given only of the blocks ``among`` (T, C)."""
    topology = step.config.topology
    candidates, keys = topology.candidates, topology.index_key_sources[layer]
    return Choice(
        *step.arithmetic.ops.choose_entries(
            query,
            weights,
            query_start,
            ((positions + 1) // topology.ratios[layer]).to(torch.int32),
            step.pages.records(step.records.index_codes[keys]),
            step.pages.records(step.records.index_scales[keys]),
            step.config.index_topk,
            step.arithmetic.rounds_scores,
            among,
            candidates.num_blocks if candidates is not None and is_candidate_source(step, layer) else 0,
            candidates.block_size if candidates is not None else 1,
        )
    )


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

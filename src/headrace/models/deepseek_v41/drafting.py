"""DFlash: a block of tokens drafted in one parallel pass, from features of the backbone's last layers.

Draft layers attend to what the features of past positions left in their windows, and to the whole block, both ways.
A rank-limited head then lets each drafted token lean on the one before it, and another says how far to trust it.
The keys of a block are never kept. Nothing here verifies: see the scheduler's plans and ``worker/verify.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .arithmetic import Arithmetic
from .attention import attend, heads_of, project_out, query_latent, window_record
from .config import V41Config
from .forward import V41Model
from .layer import run_block
from .params import LayerParams
from .quantise import unpack_mxfp8
from .step import Program


@dataclass(slots=True)
class DraftProgram:
    """A ``Program`` for rows that belong to no step."""

    config: V41Config
    arithmetic: Arithmetic


@dataclass(frozen=True, slots=True)
class DraftBlock:
    """One block: ids (B,), their logits (B, V), and confidence logits (B,) before the sigmoid."""

    ids: Tensor
    logits: Tensor
    confidence: Tensor


def context_records(model: V41Model, features: Tensor, positions: Tensor) -> list[Tensor]:
    """Window records (T, bytes) of each draft layer, from features (T, taps * hidden) at ``positions`` (T,)."""
    program, draft = _program(model), model.params.draft
    hidden = program.arithmetic.coded_linear(features, draft.main_project)
    hidden = program.arithmetic.norm(hidden, draft.main_norm, model.config.norm_eps)
    return [window_record(program, layer, hidden, positions) for layer in draft.layers]


def draft_block(
    model: V41Model, context: Sequence[Tensor], token: int, position: int, choose: Callable[[Tensor], int]
) -> DraftBlock:
    """Drafts what follows ``token`` at ``position``.

    ``context``: per draft layer the records of the last positions before it, at most the window's.
    ``choose`` draws an id from one row of logits (V,).
    """
    draft = model.config.draft
    ids = torch.tensor([token, *[draft.noise_id] * (draft.block - 1)], dtype=torch.int32)
    positions = torch.arange(position, position + draft.block)
    trunk, pre = model.spread(model.embed(ids))
    program = _program(model)
    no_images = torch.zeros(draft.block, dtype=torch.bool)
    for layer, records in zip(model.params.draft.layers, context):
        attend_block = _attention(program, layer, unpack_mxfp8(records), positions)
        trunk, pre = run_block(program, layer, draft.moe, trunk, pre, no_images, attend_block)
    return _heads(model, model.collapse(trunk, pre), token, choose)


def _program(model: V41Model) -> Program:
    return DraftProgram(model.config, model.arithmetic)


def _attention(program: Program, layer: LayerParams, context: Tensor, positions: Tensor) -> Callable[[Tensor], Tensor]:
    def run(hidden: Tensor) -> Tensor:
        query = heads_of(program, layer, query_latent(program, layer.attention, hidden), positions)
        own = unpack_mxfp8(window_record(program, layer, hidden, positions))
        keys = torch.cat((context, own))
        everything = torch.ones(len(hidden), len(keys), dtype=torch.bool)
        seen = attend(program.arithmetic.ops, query, keys, everything, layer.attention.sink)
        return project_out(program, layer, seen, positions)

    return run


def _heads(model: V41Model, hidden: Tensor, token: int, choose: Callable[[Tensor], int]) -> DraftBlock:
    """One token after another: the Markov head adds what the token before it suggests."""
    params, arithmetic = model.params.draft, model.arithmetic
    normed = arithmetic.norm(hidden, params.norm, model.config.norm_eps)
    base = arithmetic.exact_linear(normed, model.params.head)
    ids, logits, confidence = [], [], []
    for row in range(len(hidden)):
        before = arithmetic.ops.embedding(torch.tensor([token], dtype=torch.int32), params.markov_embed)
        logits.append(base[row] + arithmetic.exact_linear(before, params.markov_head)[0])
        # The state as it leaves the streams, not normed: this is what the head was trained on.
        trust = arithmetic.exact_linear(torch.cat((hidden[row], before[0])).unsqueeze(0), params.confidence)
        confidence.append(trust[0, 0])
        token = choose(logits[-1])
        ids.append(token)
    return DraftBlock(torch.tensor(ids, dtype=torch.int32), torch.stack(logits), torch.stack(confidence))

"""DFlash: blocks of tokens drafted in one parallel pass, from features of the backbone's last layers.

Draft layers attend to what the features of past positions left in their windows, and to the whole block, both ways.
A rank-limited head then lets each drafted token lean on the one before it, and another says how far to trust it.
The keys of a block are never kept. Nothing here verifies: see the scheduler's plans and ``worker/verify.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headrace.models.context import GroupIndex, LayerKV, OpenBlocks

from .attention import attend, heads_of, project_out, query_latent, window_record
from .layer import run_block
from .params import LayerParams
from .quantise import unpack_mxfp8
from .records import Pages, Records, draft_layers
from .step import Program

if TYPE_CHECKING:
    from .forward import V41Model


@dataclass(frozen=True, slots=True)
class DraftBlock:
    """One block: ids (B,), their logits (B, V), and confidence logits (B,) before the sigmoid."""

    ids: Tensor
    logits: Tensor
    confidence: Tensor


def draft_block(
    model: V41Model, context: Sequence[Tensor], token: int, position: int, choose: Callable[[Tensor], int]
) -> DraftBlock:
    """Drafts what follows ``token`` at ``position``.

    ``context``: per draft layer the records of the last positions before it, at most the window's.
    ``choose`` draws an id from one row of logits (V,).
    """
    opened = open_blocks(model, [context], [token], [position])
    ids, logits, confidence = [token], [], []
    for place in range(model.config.draft.block):
        rows, trust = block_row(model, opened, place, torch.tensor([ids[-1]], dtype=torch.int32))
        logits.append(rows[0])
        confidence.append(trust[0])
        ids.append(choose(rows[0]))
    return DraftBlock(torch.tensor(ids[1:], dtype=torch.int32), torch.stack(logits), torch.stack(confidence))


def open_blocks(
    model: V41Model, contexts: Sequence[Sequence[Tensor]], tokens: Sequence[int], positions: Sequence[int]
) -> OpenBlocks:
    """The parallel part for S sequences, each with its ``context``, last token and that token's position."""
    draft = model.config.draft
    ids = torch.full((len(tokens), draft.block), draft.noise_id, dtype=torch.int32)
    ids[:, 0] = torch.tensor(tokens, dtype=torch.int32)
    places = (torch.tensor(positions).unsqueeze(1) + torch.arange(draft.block)).flatten()
    trunk, pre = model.spread(model.embed(ids.flatten()))
    no_images = torch.zeros(len(places), dtype=torch.bool)
    for number, layer in enumerate(model.params.draft.layers):
        keys = [unpack_mxfp8(context[number]) for context in contexts]
        trunk, pre = run_block(model, layer, draft.moe, trunk, pre, no_images, _attention(model, layer, keys, places))
    hidden = model.collapse(trunk, pre)
    normed = model.arithmetic.norm(hidden, model.params.draft.norm, model.config.norm_eps)
    base = model.arithmetic.exact_linear(normed, model.params.head)
    shape = (len(tokens), draft.block)
    return OpenBlocks(hidden.unflatten(0, shape), base.unflatten(0, shape))


def _attention(
    program: Program, layer: LayerParams, contexts: Sequence[Tensor], positions: Tensor
) -> Callable[[Tensor], Tensor]:
    block = program.config.draft.block

    def run(hidden: Tensor) -> Tensor:
        coded = program.arithmetic.coded(hidden)
        latent = program.arithmetic.coded(query_latent(program, layer.attention, coded))
        query = heads_of(program, layer, latent, positions)
        own = unpack_mxfp8(window_record(program, layer, coded, positions))
        seen = []
        for number, context in enumerate(contexts):
            rows = slice(number * block, (number + 1) * block)
            keys = torch.cat((context, own[rows]))
            everything = torch.ones(block, len(keys), dtype=torch.bool)
            seen.append(attend(program.arithmetic.ops, query[rows], keys, everything, layer.attention.sink))
        return project_out(program, layer, torch.cat(seen), positions)

    return run


def block_row(model: V41Model, opened: OpenBlocks, place: int, before: Tensor) -> tuple[Tensor, Tensor]:
    """Logits (S, V) and confidence logits (S,) of one place, given the tokens ``before`` (S,) it."""
    params, arithmetic = model.params.draft, model.arithmetic
    lean = arithmetic.ops.embedding(before, params.markov_embed)
    logits = opened.base[:, place] + arithmetic.exact_linear(lean, params.markov_head)
    # The state as it leaves the streams, not normed: this is what the head was trained on.
    trust = arithmetic.exact_linear(torch.cat((opened.hidden[:, place], lean), dim=1), params.confidence)
    return logits, trust[:, 0]


class V41DraftHeads:
    """A model's draft heads over the pool that its forwards write (``models.context.DraftHeads``)."""

    def __init__(self, model: V41Model) -> None:
        """Raises AssertionError where the model keeps no draft records: the pool has no room for them."""
        assert model.drafts
        self.model = model

    @property
    def block(self) -> int:
        return self.model.config.draft.block

    def open(
        self, kv: Sequence[LayerKV], groups: Sequence[GroupIndex], tokens: Sequence[int], positions: Sequence[int]
    ) -> OpenBlocks:
        blocks, config = kv[0].k, self.model.config
        pages, records = Pages(blocks, groups), Records(config, blocks.shape[2], drafts=True)
        contexts = []
        for number, position in enumerate(positions):
            past = torch.arange(max(0, position - config.window), position)
            slices = torch.full_like(past, number)
            contexts.append([pages.read(records.window[n], slices, past) for n in draft_layers(config)])
        return open_blocks(self.model, contexts, tokens, positions)

    def row(self, opened: OpenBlocks, place: int, before: Tensor) -> tuple[Tensor, Tensor]:
        return block_row(self.model, opened, place, before)

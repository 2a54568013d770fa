"""One step of the family: the rows at hand, where their sequences lie, and what layers hand on to later ones.

Made for one forward pass and dropped after it. What must outlive a step is in records, nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from headrace.models.context import ForwardContext

from .arithmetic import Arithmetic
from .config import V41Config
from .engram_hash import IMAGE, ngrams
from .records import Pages, Records, as_bytes, as_ids


class Program(Protocol):
    """What every computation needs: sizes and rules, and the arithmetic. A ``Step`` is one, a draft block another."""

    config: V41Config
    arithmetic: Arithmetic


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows [start, end) of the step are positions [first, last) of one sequence; ``number`` is its row of tables."""

    number: int
    start: int
    end: int
    first: int
    last: int

    @property
    def rows(self) -> slice:
        return slice(self.start, self.end)


@dataclass(slots=True)
class Step:
    """``selected`` and ``candidates`` hold, per slice, what the latest index layer chose: (rows, K) compressed entries
    and (rows, C) blocks of them. ``features``, if a dict, collects what draft layers are fed with, by layer."""

    config: V41Config
    arithmetic: Arithmetic
    pages: Pages
    records: Records
    slices: tuple[Slice, ...]
    slice_of: Tensor  # (T,) int64
    positions: Tensor  # (T,) int64
    image_rows: Tensor  # (T,) bool
    grams: Tensor  # (T, longest) compressed ids for Engram; (T, 0) without it
    selected: list[Tensor] = field(default_factory=list)
    candidates: list[Tensor] = field(default_factory=list)
    features: dict[int, Tensor] | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.positions)


def begin_step(ctx: ForwardContext, config: V41Config, token_map: Tensor, mode: str) -> Step:
    """Reads the packed step, stores its compressed token ids and forms its n-grams."""
    blocks = ctx.layers[0].k
    pages, records = Pages(blocks, ctx.groups), Records(config, blocks.shape[2])
    slices = _slices(ctx)
    counts = torch.tensor([s.end - s.start for s in slices])
    image_rows = ctx.input_ids == config.image_id
    step = Step(
        config,
        Arithmetic(ctx.ops, mode),
        pages,
        records,
        slices,
        torch.arange(len(slices)).repeat_interleave(counts),
        ctx.positions.long(),
        image_rows,
        torch.empty(len(ctx.positions), 0, dtype=torch.int32),
    )
    if config.engram is not None:
        compressed = token_map[ctx.input_ids.long()].masked_fill(image_rows, IMAGE)
        step.grams = _grams(step, compressed, int(token_map[config.engram.pad_id]), config.engram.longest)
    return step


def _slices(ctx: ForwardContext) -> tuple[Slice, ...]:
    starts, lasts = ctx.query_start_loc.tolist(), ctx.seq_lens.tolist()
    return tuple(
        Slice(number, start, end, last - (end - start), last)
        for number, (start, end, last) in enumerate(zip(starts, starts[1:], lasts))
    )


def _grams(step: Step, compressed: Tensor, pad: int, longest: int) -> Tensor:
    section = step.records.ids
    step.pages.write(section, step.slice_of, step.positions, as_bytes(compressed.unsqueeze(1)))
    parts = []
    for s in step.slices:
        before = torch.arange(max(0, s.first - longest + 1), s.first)
        history = as_ids(step.pages.read(section, torch.full_like(before, s.number), before))
        parts.append(ngrams(history, compressed[s.rows], pad, longest))
    return torch.cat(parts)

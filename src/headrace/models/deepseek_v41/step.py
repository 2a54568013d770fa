"""One step of the family: the rows at hand, where their sequences lie, and what layers hand on to later ones.

Made for one forward pass and dropped after it. What must outlive a step is in records, nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Protocol

import torch
from torch import Tensor

from headrace.models.context import ForwardContext

from .arithmetic import Arithmetic
from .config import V41Config
from .engram_hash import IMAGE, ngrams
from .experts import LOCAL, RoutedExperts
from .records import Pages, Records, Section, as_bytes, as_ids
from .truncation import Truncation

NOTHING_SKIPPED = Truncation()


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
    """``selected`` (T, K) and ``candidates`` (T, C), int32, are what the latest index layer chose: compressed entries,
    and blocks of them. ``features``, if a dict, collects what draft layers are fed with, by layer."""

    config: V41Config
    arithmetic: Arithmetic
    pages: Pages
    records: Records
    slices: tuple[Slice, ...]
    slice_of: Tensor  # (T,) int64
    positions: Tensor  # (T,) int64
    image_rows: Tensor  # (T,) bool
    grams: Tensor  # (T, longest) compressed ids for Engram; (T, 0) without it
    selected: Tensor | None = None
    candidates: Tensor | None = None
    features: dict[int, Tensor] | None = None
    truncation: Truncation = NOTHING_SKIPPED
    known: tuple[int, ...] = ()  # tokens known of each slice's sequence
    compressed: int = -1  # the layer whose rows are compressed already, for all of the step's tokens
    experts: RoutedExperts = LOCAL

    @property
    def num_tokens(self) -> int:
        return len(self.positions)

    def window_floor(self, layer: int, s: Slice) -> int:
        """First position whose window keys rows of ``s`` may see in this layer."""
        in_decoder = layer >= self.config.topology.first_decoder
        return self.truncation.floor(self.known[s.number]) if in_decoder else 0

    def window_floors(self, layer: int) -> Tensor:
        """``window_floor`` of every slice: (S,) int32."""
        return torch.tensor([self.window_floor(layer, s) for s in self.slices], dtype=torch.int32)

    def query_start(self) -> Tensor:
        """(S + 1,) int32: where each slice's rows begin, and the end of the last one's."""
        return torch.tensor([0, *(s.end for s in self.slices)], dtype=torch.int32)

    def seq_lens(self) -> Tensor:
        """(S,) int32."""
        return torch.tensor([s.last for s in self.slices], dtype=torch.int32)

    def read(self, section: Section, s: Slice, rows: Tensor) -> Tensor:
        """Records (n, width) at ``rows`` (n,) of one sequence."""
        return self.pages.read(section, torch.full_like(rows, s.number), rows)

    def kept(self) -> Tensor:
        """Rows (n,) that the decoder half computes."""
        clips = [self.truncation.clip(self.known[s.number], s.first, s.end - s.start) for s in self.slices]
        return torch.cat([torch.arange(s.start + clip, s.end) for s, clip in zip(self.slices, clips)])

    def narrowed(self, rows: Tensor, compressed: int) -> Step:
        """The step of ``rows`` only, a tail of each slice; ``compressed`` as in the field."""
        counts = torch.bincount(self.slice_of[rows], minlength=len(self.slices)).tolist()
        ends = list(accumulate(counts))
        slices = tuple(
            Slice(s.number, end - count, end, s.last - count, s.last)
            for s, end, count in zip(self.slices, ends, counts)
        )
        return replace(
            self,
            slices=slices,
            slice_of=self.slice_of[rows],
            positions=self.positions[rows],
            image_rows=self.image_rows[rows],
            grams=self.grams[rows],
            selected=None,
            candidates=None,
            compressed=compressed,
        )


def begin_step(
    ctx: ForwardContext,
    config: V41Config,
    token_map: Tensor,
    mode: str,
    truncation: Truncation,
    *,
    drafts: bool = False,
    experts: RoutedExperts = LOCAL,
) -> Step:
    """Reads the packed step, stores its compressed token ids and forms its n-grams. ``drafts``: features are kept for
    the draft layers, whose records the pool has."""
    blocks = ctx.layers[0].k
    pages, records = Pages(blocks, ctx.groups), Records(config, blocks.shape[2], drafts=drafts)
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
        features={} if drafts else None,
        truncation=truncation,
        experts=experts,
        known=tuple((ctx.seq_lens if ctx.known_lens is None else ctx.known_lens).tolist()),
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
        history = as_ids(step.read(section, s, before))
        parts.append(ngrams(history, compressed[s.rows], pad, longest))
    return torch.cat(parts)

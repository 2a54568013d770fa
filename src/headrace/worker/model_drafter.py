"""Drafts by a model: a small one of the same vocabulary, or the first layers of the target itself.

Keys and values lie at the slots of the target's block tables: the target's own tensors for its first layers, a pool of
the same shape beside it for another model. Where they are not known to be valid they are computed (again), so a
preemption or a prefix hit costs time and nothing else. A draft is drawn as the sequence draws, with the very noise the
target will use at that position, so that alike distributions give the same id; or, for ``rejection``, with noise of its
own, and then its distribution goes along.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headrace.contract.plan import IntArray
from headrace.contract.request import SamplingParams
from headrace.kernels.ops import Ops
from headrace.kernels.reference.sampling import distribution
from headrace.models.context import ForwardContext, GroupIndex, LayerKV, Model
from headrace.speculation.drafter import EMPTY, Draft, Wanted

from .rejection import DRAW, one_row
from .sampler import sample_params

ROWS_AT_ONCE = 256  # of catching up on a prompt: bounds what one forward needs


@dataclass(slots=True)
class Growing:
    """A draft in the making: ``tokens`` are the sequence's with the ids found so far."""

    item: Wanted
    tokens: list[int]
    ids: list[int]
    facts: list[tuple[float, float, float]]
    probs: list[Tensor]
    most: int

    @property
    def done(self) -> bool:
        return len(self.ids) >= self.most

    def grow(self, token: int, fact: tuple[float, float, float], probs: Tensor | None) -> None:
        self.tokens.append(token)
        self.ids.append(token)
        self.facts.append(fact)
        if probs is not None:
            self.probs.append(probs)


@dataclass(frozen=True, slots=True)
class Drawn:
    """One row each: id (-1: nothing finite), facts, and the distribution where rejection sampling will judge it."""

    ids: list[int]
    facts: list[tuple[float, float, float]]
    probs: list[Tensor | None]


def draw_one(ops: Ops, live: Sequence[Growing], logits: Tensor, *, rejection: bool) -> Drawn:
    """From ``logits`` (S, V), as each sequence draws its next token."""
    wishes = [one.item.sampling or SamplingParams(temperature=0.0) for one in live]
    params = sample_params(wishes, [len(one.tokens) for one in live], DRAW if rejection else 0)
    ids = ops.sample(logits, params).tolist()

    def probs(i: int) -> Tensor | None:
        if not rejection or float(params.temperature[i]) <= 0 or ids[i] < 0:  # as the ops see it: in float32
            return None
        return distribution(logits[i : i + 1], one_row(params, i))[0]

    return Drawn(ids, _facts(logits), [probs(i) for i in range(len(live))])


class ModelDrafter:
    """``group``: the target's KV group whose tables and slots serve all of the model's layers; None: each layer's own,
    as in the target (its first layers). ``shares_kv``: everything the target has computed is valid here too."""

    eager = False

    def __init__(
        self,
        model: Model,
        ops: Ops,
        kv: Sequence[LayerKV],
        block_size: int,
        *,
        group: int | None = None,
        shares_kv: bool = False,
        rejection: bool = False,
    ) -> None:
        self._model, self._ops = model, ops
        self._kv = [LayerKV(layer.k, layer.v, 0) for layer in kv] if group is not None else list(kv)
        self._group = group
        self._block_size = block_size
        self._shares_kv = shares_kv
        self._rejection = rejection
        self._valid: dict[int, int] = {}  # per sequence: leading tokens whose keys and values stand

    def begin(self, seq_id: int, tokens: IntArray) -> None:  # noqa: ARG002
        self._valid[seq_id] = 0

    def extend(self, seq_id: int, tokens: IntArray) -> None:
        pass

    def end(self, seq_id: int) -> None:
        self._valid.pop(seq_id, None)

    def propose(self, wanted: Sequence[Wanted]) -> list[Draft]:
        """Runs on the device thread, between steps. Needs ``blocks`` of every sequence, reaching over its draft. No
        draft for a sequence beyond this model's context."""
        growing = [Growing(item, item.tokens.tolist(), [], [], [], item.most) for item in wanted]
        for one in growing:
            if self._reaches(one):
                self._catch_up(one)
        while live := [one for one in growing if not one.done and self._reaches(one)]:
            self._grow(live)
        for one in growing:  # what was drafted may be rejected: only the sequence's own tokens are kept as valid
            self._valid[one.item.seq_id] = min(self._valid[one.item.seq_id], len(one.item.tokens))
        return [draft_of(one) for one in growing]

    def _reaches(self, one: Growing) -> bool:
        """Whether the last token has a position here: this model's context may be shorter than the target's."""
        return len(one.tokens) <= self._model.max_positions

    def _catch_up(self, one: Growing) -> None:
        """Keys and values of all tokens but the last, which is the first step's input."""
        seq_id, last = one.item.seq_id, len(one.tokens) - 1
        if self._shares_kv:
            self._valid[seq_id] = last
        while (start := self._valid[seq_id]) < last:
            end = min(last, start + ROWS_AT_ONCE)
            self._forward([one], [start], [end])
            self._valid[seq_id] = end

    def _grow(self, live: Sequence[Growing]) -> None:
        """One more id for each, and what is known of it."""
        ends = [len(one.tokens) for one in live]
        hidden = self._forward(live, [end - 1 for end in ends], ends)
        drawn = draw_one(self._ops, live, self._model.logits(hidden), rejection=self._rejection)
        for one, token, fact, probs in zip(live, drawn.ids, drawn.facts, drawn.probs):
            if token < 0:  # nothing finite to draw from
                one.most = len(one.ids)
                continue
            self._valid[one.item.seq_id] = len(one.tokens)
            one.grow(token, fact, probs)

    def _forward(self, live: Sequence[Growing], starts: Sequence[int], ends: Sequence[int]) -> Tensor:
        """Hidden states of ``tokens[start:end]`` of each, flat."""
        lengths = [end - start for start, end in zip(starts, ends)]
        ids = np.concatenate([np.array(one.tokens[s:e], dtype=np.int32) for one, s, e in zip(live, starts, ends)])
        positions = np.concatenate([np.arange(s, e, dtype=np.int32) for s, e in zip(starts, ends)])
        context = ForwardContext(
            ops=self._ops,
            input_ids=torch.from_numpy(ids),
            positions=torch.from_numpy(positions),
            query_start_loc=torch.from_numpy(np.cumsum([0, *lengths], dtype=np.int32)),
            seq_lens=torch.from_numpy(np.array(ends, dtype=np.int32)),
            groups=self._groups(live, lengths, positions),
            layers=self._kv,
        )
        return self._model.forward(context)

    def _groups(self, live: Sequence[Growing], lengths: Sequence[int], positions: IntArray) -> list[GroupIndex]:
        tables = np.stack([tables_of(one.item) for one in live], axis=1)  # (G, S, max_blocks)
        if self._group is not None:
            tables = tables[self._group : self._group + 1]
        rows = np.repeat(np.arange(len(live)), lengths)
        blocks = tables[:, rows, positions // self._block_size]
        slots = np.ascontiguousarray(blocks * self._block_size + positions % self._block_size, dtype=np.int32)
        slots[blocks <= 0] = -1  # behind a window, or beyond what is held: nothing is written there
        return [
            GroupIndex(torch.from_numpy(t), torch.from_numpy(s)) for t, s in zip(np.ascontiguousarray(tables), slots)
        ]


def _facts(logits: Tensor) -> list[tuple[float, float, float]]:
    """(match length, entropy, maximum) of each row's distribution."""
    logs = logits.log_softmax(-1)
    probs = logs.exp()
    entropy = -(probs * logs.clamp_min(-100.0)).sum(-1)
    return [(0.0, float(h), float(p)) for h, p in zip(entropy, probs.amax(-1))]


def tables_of(item: Wanted) -> IntArray:
    assert item.blocks is not None, "a drafter that is not eager is told the block tables"
    return item.blocks


def draft_of(one: Growing) -> Draft:
    if not one.ids:
        return EMPTY
    facts = np.nan_to_num(np.array(one.facts, dtype=np.float64))
    return Draft(np.array(one.ids, dtype=np.int32), facts, torch.stack(one.probs) if one.probs else None)

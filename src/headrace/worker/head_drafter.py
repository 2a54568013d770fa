"""Drafts by the model's own draft heads: a block at once, from what its forwards left in the pool.

Asked between steps, when the tokens before the last one have all been computed: nothing is to catch up on, a preemption
or a prefix hit brings the records back with the rest. Draws as ``model_drafter`` does.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from headrace.contract.plan import IntArray
from headrace.kernels.ops import Ops
from headrace.models.context import DraftHeads, GroupIndex, LayerKV, OpenBlocks
from headrace.speculation.drafter import EMPTY, Draft, Wanted

from .model_drafter import Growing, draft_of, draw_one, tables_of


class HeadDrafter:
    """``rejection``: distributions go along, and noise of its own draws."""

    eager = False

    def __init__(self, heads: DraftHeads, ops: Ops, kv: Sequence[LayerKV], *, rejection: bool = False) -> None:
        self._heads, self._ops, self._kv = heads, ops, kv
        self._rejection = rejection

    @property
    def block(self) -> int:
        """Ids of a draft at most."""
        return self._heads.block

    def begin(self, seq_id: int, tokens: IntArray) -> None:
        pass

    def extend(self, seq_id: int, tokens: IntArray) -> None:
        pass

    def end(self, seq_id: int) -> None:
        pass

    def propose(self, wanted: Sequence[Wanted]) -> list[Draft]:
        """Runs on the device thread, between steps. Needs ``blocks`` of every sequence."""
        growing = [Growing(w, w.tokens.tolist(), [], [], [], min(w.most, self.block)) for w in wanted]
        live = [one for one in growing if one.most > 0 and one.tokens]
        if not live:
            return [EMPTY for _ in growing]
        tables = np.stack([tables_of(one.item) for one in live], axis=1)  # (G, S, max_blocks)
        groups = [GroupIndex(torch.from_numpy(t), torch.empty(0, dtype=torch.int32)) for t in tables]
        last, ends = [one.tokens[-1] for one in live], [len(one.tokens) - 1 for one in live]
        opened = self._heads.open(self._kv, groups, last, ends)
        for place in range(max(one.most for one in live)):
            self._fill(live, opened, place)
        return [draft_of(one) for one in growing]

    def _fill(self, live: Sequence[Growing], opened: OpenBlocks, place: int) -> None:
        """One more id for each. A sequence that is done goes along, and what it would get is dropped."""
        before = torch.tensor([one.tokens[-1] for one in live], dtype=torch.int32)
        logits, trust = self._heads.row(opened, place, before)
        drawn = draw_one(self._ops, live, logits, rejection=self._rejection)
        for i, (one, token) in enumerate(zip(live, drawn.ids)):
            if one.done:
                continue
            if token < 0:  # nothing finite to draw from
                one.most = len(one.ids)
                continue
            one.grow(token, (evidence(trust[i]), *drawn.facts[i][1:]), drawn.probs[i])


def evidence(trust: Tensor) -> float:
    """The confidence head's odds, in the place where drafts by match have the length of their match: either grows with
    how far a draft can be trusted. No number at all is no trust: the estimator learns from all sequences alike, and
    would never be rid of it."""
    return float(torch.exp(trust.nan_to_num(-20.0).clamp(-20.0, 20.0)))

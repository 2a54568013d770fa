"""What the rows of pictures hold in place of token embeddings. Lives on the device thread.

A picture that did not come encoded is encoded when the first of its rows is computed, and kept for the rows that follow
in later chunks; another request with the same picture finds it too. Forgetting one costs time, never another answer.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from headrace.contract.batch import PackedBatch
from headrace.contract.picture import Picture
from headrace.contract.plan import SequenceStart, StepPlan
from headrace.models.context import ForwardContext, HasEyes, Model

MOST_ROWS = 16_384  # of encoded pictures that are kept


class Pictures:
    """The pictures of live sequences. ``eyes`` encodes; None where the model reads text only."""

    def __init__(self, model: Model) -> None:
        self._eyes = model if isinstance(model, HasEyes) else None
        self._live: dict[int, tuple[Picture, ...]] = {}
        self._encoded: OrderedDict[str, Tensor] = OrderedDict()

    def take(self, plan: StepPlan, starts: Sequence[SequenceStart]) -> None:
        """The plan's news: who is gone, who begins."""
        for seq_id in plan.dropped.tolist():
            self._live.pop(seq_id, None)
        for start in starts:
            if start.pictures:
                self._live[start.seq_id] = start.pictures

    def placed(self, context: ForwardContext, seq_ids: Iterable[int], batch: PackedBatch) -> ForwardContext:
        """``context`` with the rows that are pictures replaced; itself where there are none."""
        if not self._live or self._eyes is None:
            return context
        rows, values, starts = [], [], batch.query_start_loc.tolist()
        for s, seq_id in enumerate(seq_ids):
            if starts[s] == starts[s + 1]:
                continue
            first = int(batch.positions[starts[s]])
            end = first + starts[s + 1] - starts[s]
            for picture in self._live.get(seq_id, ()):
                low, high = max(first, picture.start), min(end, picture.end)
                if low < high:
                    rows.append(torch.arange(low, high) - first + starts[s])
                    values.append(self._rows(picture)[low - picture.start : high - picture.start])
        return replace(context, replaced=(torch.cat(rows), torch.cat(values))) if rows else context

    def _rows(self, picture: Picture) -> Tensor:
        """(rows, hidden) of one picture."""
        assert self._eyes is not None
        rows = self._encoded.pop(picture.id, None)
        if rows is None:
            rows = _given(picture) if picture.rows else self._eyes.picture_rows(picture)
        self._encoded[picture.id] = rows  # the newest is at the end
        while len(self._encoded) > 1 and sum(map(len, self._encoded.values())) > MOST_ROWS:
            self._encoded.popitem(last=False)
        return rows


def _given(picture: Picture) -> Tensor:
    """(rows, hidden) as an encoder's process has computed them."""
    return torch.frombuffer(bytearray(picture.rows), dtype=torch.float32).view(len(picture.kinds), -1)

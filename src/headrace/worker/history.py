"""What the device thread knows of each sequence: the tokens that stand, and the draft that may follow them.

The scheduler's and the packer's copies belong to the host and run ahead or behind by a step; this one is exact at the
moment a step's forward begins, because the step before it has been sampled by then.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.contract.plan import IntArray, SequenceStart
from headrace.speculation.drafter import Draft

SPARE = 256  # tokens a buffer can grow before it is moved


@dataclass(slots=True)
class History:
    """One sequence. ``buffer[:length]`` are its tokens; behind them there is room to lay a draft out."""

    start: SequenceStart
    buffer: IntArray
    length: int
    draft: Draft | None = None  # for exactly these tokens; None: not asked yet

    @staticmethod
    def of(start: SequenceStart, tokens: IntArray) -> History:
        buffer = np.empty(len(tokens) + SPARE, dtype=np.int32)
        buffer[: len(tokens)] = tokens
        return History(start, buffer, len(tokens))

    @property
    def tokens(self) -> IntArray:
        return self.buffer[: self.length]

    def with_draft(self, ids: IntArray) -> IntArray:
        """The tokens followed by ``ids``, as one view that the next call overwrites."""
        end = self.length + len(ids)
        if end > len(self.buffer):
            self._grow(end)
        self.buffer[self.length : end] = ids
        return self.buffer[:end]

    def append(self, ids: IntArray) -> None:
        self.with_draft(ids)
        self.length += len(ids)
        self.draft = None

    def _grow(self, least: int) -> None:
        buffer = np.empty(max(2 * len(self.buffer), least + SPARE), dtype=np.int32)
        buffer[: self.length] = self.buffer[: self.length]
        self.buffer = buffer

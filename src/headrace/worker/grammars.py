"""Grammars of the worker's rows: which ids each structured row may draw next. Host side; device side it is one mask.

A sequence that leaves its grammar costs itself only: its row is reported as an error, the others go on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from headrace.contract.plan import SequenceStart
from headrace.grammar.mask import WordArray, allowed, empty_words
from headrace.grammar.matching import GrammarError, SequenceMatch

from .sampler import SampleRow

NO_TOKEN = "no token satisfies both the structured output and the request's other rules"


@dataclass(frozen=True, slots=True)
class GrammarMasks:
    """Bits of the rows that have a grammar, by row number; and the sequences that have left theirs."""

    words: dict[int, WordArray] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)

    def apply(self, logits: Tensor) -> None:
        """Device side, in place: ids that are not allowed get minus infinity. Each row alone, so its bits never
        depend on the others."""
        for row, words in self.words.items():
            mask = torch.from_numpy(allowed(words, logits.shape[1]))
            logits[row].masked_fill_(~mask, float("-inf"))

    def spread(self, rows_per_slice: Sequence[int]) -> GrammarMasks:
        """The same masks where each sampled slice has several rows; theirs is the first (they carry no drafts)."""
        if not self.words:
            return self
        firsts = [sum(rows_per_slice[:i]) for i in range(len(rows_per_slice))]
        return GrammarMasks({firsts[i]: words for i, words in self.words.items()}, self.errors)


class Grammars:
    """Matchers of live sequences. ``vocab_size`` is the model's."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._matches: dict[int, SequenceMatch] = {}

    def take(self, dropped: Sequence[int], starts: Sequence[SequenceStart]) -> None:
        """Follows the plan's news. A sequence that starts again begins a new matcher, which replays its outputs."""
        for seq_id in dropped:
            self._matches.pop(seq_id, None)
        for start in starts:
            if start.grammar is not None:
                self._matches[start.seq_id] = SequenceMatch(start.grammar)

    def masks(self, rows: Sequence[SampleRow]) -> GrammarMasks:
        """What the rows of a step may draw."""
        masks = GrammarMasks()
        for i, row in enumerate(rows):
            match = self._matches.get(row.start.seq_id)
            if match is not None:
                self._mask_row(masks, i, row, match)
        return masks

    def _mask_row(self, masks: GrammarMasks, index: int, row: SampleRow, match: SequenceMatch) -> None:
        words = empty_words(self._vocab_size)
        try:
            match.follow(row.tokens[row.start.prompt_len :])
            if match.fill(words):  # not so when it has ended: the scheduler is about to drop it
                masks.words[index] = words
        except (GrammarError, RuntimeError) as error:
            masks.errors[row.start.seq_id] = f"structured output: {error}"

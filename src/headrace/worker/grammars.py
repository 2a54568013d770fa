"""Grammars of the worker's rows: which ids each structured row may draw next, and which drafts fit.

Without speculation the host asks before a step is sampled; with it the device thread does, because only there it is
known what stands. Never both: a matcher belongs to one thread. A sequence that leaves its grammar costs itself only:
its row is reported as an error, the others go on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

import torch
from torch import Tensor

from headrace.contract.plan import IntArray, SequenceStart
from headrace.contract.result import RowError
from headrace.grammar.mask import WordArray, allowed, empty_words
from headrace.grammar.matching import GrammarError, GrammarTooSlow, SequenceMatch
from headrace.speculation.drafter import Draft

from .sampler import SampleRow

NO_TOKEN = RowError("no token satisfies both the structured output and the request's other rules", by_structure=True)


@dataclass(frozen=True, slots=True)
class GrammarMasks:
    """Bits of the rows that have a grammar, by row number; and the sequences that have left theirs."""

    words: dict[int, WordArray] = field(default_factory=dict)
    errors: dict[int, RowError] = field(default_factory=dict)

    def apply(self, logits: Tensor) -> None:
        """Device side, in place: ids that are not allowed get minus infinity. Each row alone, so its bits never
        depend on the others."""
        for row, words in self.words.items():
            mask = torch.from_numpy(allowed(words, logits.shape[1]))
            logits[row].masked_fill_(~mask, float("-inf"))


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

    def fitting(self, start: SequenceStart, tokens: IntArray, draft: Draft) -> Draft:
        """What of a draft may be verified behind ``tokens`` (prompt included): the ids up to the first that the grammar
        forbids. Where ids were drawn, that one is kept: it is always rejected, and what is drawn in its place then
        has the right distribution; left out, whether a row is judged would depend on the id that was drawn."""
        match = self._matches.get(start.seq_id)
        if match is None or len(draft) == 0:
            return draft
        try:
            match.follow(tokens[start.prompt_len :])
            fitting = match.fits(draft.ids)
        except (GrammarError, RuntimeError):
            return draft.first(0)  # the next row of this sequence says what is wrong
        return draft.first(fitting + (draft.probs is not None))

    def masks(self, rows: Sequence[SampleRow]) -> GrammarMasks:
        """What the rows of a step may draw. Rows of one sequence stand together; each has one token more than the row
        before it, and only the first row's tokens are taken."""
        masks = GrammarMasks()
        if self._matches:
            for seq_id, run in groupby(enumerate(rows), lambda row: row[1].start.seq_id):
                if (match := self._matches.get(seq_id)) is not None:
                    indices, own = zip(*run)
                    self._mask_run(masks, indices, own, match)
        return masks

    def _mask_run(
        self, masks: GrammarMasks, indices: Sequence[int], rows: Sequence[SampleRow], match: SequenceMatch
    ) -> None:
        start, words = rows[0].start, [empty_words(self._vocab_size) for _ in rows]
        try:
            match.follow(rows[0].tokens[start.prompt_len :])
            filled = match.fill_run([int(row.tokens[-1]) for row in rows[1:]], words)
        except (GrammarError, RuntimeError) as error:
            slow = isinstance(error, GrammarTooSlow)
            masks.errors[start.seq_id] = RowError(str(error) if slow else f"structured output: {error}", slow)
            return
        # Not filled: it has ended, and the scheduler is about to drop it; or behind a draft that will be rejected.
        masks.words.update((i, row) for i, row, known in zip(indices, words, filled) if known)

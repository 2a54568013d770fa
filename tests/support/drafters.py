"""Drafters for tests: guesses that are right as often as a test wants, and ways to look at what was proposed."""

from __future__ import annotations

import random
from collections.abc import Sequence

from headrace.contract.plan import IntArray
from headrace.speculation.drafter import Draft, Wanted, matched


class Prophet:
    """Knows whole texts (prompt and answer) and proposes what comes next in them; each id is wrong, and each length
    cut short, with the given chance. Drawn from the prefix alone, so a sequence gets the same drafts in any company."""

    eager = True

    def __init__(self, texts: Sequence[Sequence[int]], wrong: float = 0.2, vocab_size: int = 61) -> None:
        self.texts = [tuple(text) for text in texts]
        self.wrong, self.vocab_size = wrong, vocab_size
        self.live: set[int] = set()
        self.num_proposed = 0

    def begin(self, seq_id: int, tokens: IntArray) -> None:
        assert seq_id not in self.live
        assert (tokens >= 0).all()
        self.live.add(seq_id)

    def extend(self, seq_id: int, tokens: IntArray) -> None:
        assert seq_id in self.live
        assert (tokens >= 0).all()

    def end(self, seq_id: int) -> None:
        self.live.discard(seq_id)

    def propose(self, wanted: Sequence[Wanted]) -> list[Draft]:
        drafts = [self._propose(item) for item in wanted]
        self.num_proposed += sum(len(draft) for draft in drafts)
        return drafts

    def _propose(self, item: Wanted) -> Draft:
        known = tuple(item.tokens.tolist())
        draw = random.Random(hash(known))
        found = next((text for text in self.texts if text[: len(known)] == known), known)
        ids = list(found[len(known) : len(known) + draw.randint(0, item.most)])
        for i, _ in enumerate(ids):
            if draw.random() < self.wrong:
                ids[i] = draw.randrange(self.vocab_size)
        return matched(ids, 3)

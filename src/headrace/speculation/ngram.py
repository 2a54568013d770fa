"""Prompt lookup: what followed the last few tokens the last time they occurred. Costs a few dictionary look-ups.

Knows each sequence's own tokens only, so what one request gets never depends on another.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.contract.plan import IntArray

from .drafter import EMPTY, Draft, Wanted, matched


class NgramIndex:
    """Where each run of ``low`` .. ``high`` tokens of one sequence last ended. The newest run, which ends with the
    sequence itself, is entered only when a token follows it."""

    def __init__(self, low: int, high: int) -> None:
        self._low, self._high = low, high
        self._ends: list[dict[tuple[int, ...], int]] = [{} for _ in range(high - low + 1)]
        self._tokens: list[int] = []

    def extend(self, tokens: Sequence[int]) -> None:
        known = self._tokens
        for token in tokens:
            end = len(known)
            for n, ends in enumerate(self._ends, self._low):
                if end >= n:
                    ends[tuple(known[end - n :])] = end
            known.append(token)

    def continuation(self, most: int) -> tuple[list[int], int]:
        """(ids, length of the match): the longest match counts, the latest of equally long ones.

        Where the match reaches into the end of the sequence, it is a repetition, and goes on repeating.
        """
        known = self._tokens
        for n in range(min(self._high, len(known)), self._low - 1, -1):
            end = self._ends[n - self._low].get(tuple(known[-n:]))
            if end is not None:
                period = len(known) - end
                return [known[end + i % period] for i in range(most)], n
        return [], 0


class NgramDrafter:
    """A ``Drafter`` by prompt lookup with matches of ``low`` to ``high`` tokens."""

    eager = True

    def __init__(self, low: int, high: int) -> None:
        self._low, self._high = low, high
        self._indexes: dict[int, NgramIndex] = {}

    def begin(self, seq_id: int, tokens: IntArray) -> None:
        index = self._indexes[seq_id] = NgramIndex(self._low, self._high)
        index.extend(tokens.tolist())

    def extend(self, seq_id: int, tokens: IntArray) -> None:
        self._indexes[seq_id].extend(tokens.tolist())

    def end(self, seq_id: int) -> None:
        self._indexes.pop(seq_id, None)

    def propose(self, wanted: Sequence[Wanted]) -> list[Draft]:
        return [self._propose(item) for item in wanted]

    def _propose(self, item: Wanted) -> Draft:
        ids, length = self._indexes[item.seq_id].continuation(item.most)
        return matched(ids, length) if ids else EMPTY

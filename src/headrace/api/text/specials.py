"""Finds control tokens in text: leftmost first, and of those the longest, as the encoder itself does."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator


class SpecialMatcher:
    """All control spellings of one tokenizer. Linear in the text, however many spellings there are.

    Families exist with 6,000 control tokens that share their first character, so candidates are looked up
    in a table by length instead of being tried one after the other.
    """

    def __init__(self, spellings: Iterable[str]) -> None:
        self.spellings = frozenset(s for s in spellings if s)
        self._lengths = sorted({len(s) for s in self.spellings}, reverse=True)
        firsts = "".join(sorted({s[0] for s in self.spellings}))
        self._starts = re.compile(f"[{re.escape(firsts)}]") if firsts else None

    def find(self, text: str) -> Iterator[tuple[int, int]]:
        """``(start, end)`` of each control spelling in ``text``, without overlaps."""
        pos = 0
        while self._starts and (start := self._starts.search(text, pos)):
            pos = start.end()
            length = self._length_at(text, start.start())
            if length:
                pos = start.start() + length
                yield start.start(), pos

    def _length_at(self, text: str, start: int) -> int:
        for length in self._lengths:
            if text[start : start + length] in self.spellings:
                return length
        return 0

    def occurs_in(self, text: str) -> bool:
        return next(self.find(text), None) is not None

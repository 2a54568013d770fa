"""Finds marks that are only text, in a stream of pieces. What may still become a mark is held back."""

from __future__ import annotations

from collections.abc import Mapping

from .answer_forms import Mark

Piece = str | Mark


class TextMarks:
    """The pieces that come out do not depend on how the text was cut on its way in."""

    def __init__(self, spellings: Mapping[str, Mark]) -> None:
        self._spellings = spellings
        self._held = ""

    def push(self, text: str) -> list[Piece]:
        """Text and marks that are certain now, in order."""
        text, out = self._held + text, list[Piece]()
        while (found := self._first(text)) is not None:
            start, spelling = found
            out += [text[:start]] if start else []
            out.append(self._spellings[spelling])
            text = text[start + len(spelling) :]
        keep = self._open_end(text)
        self._held = text[len(text) - keep :]
        return out + ([text[: len(text) - keep]] if keep < len(text) else [])

    def flush(self) -> list[Piece]:
        """What was held back, as text."""
        held, self._held = self._held, ""
        return [held] if held else []

    def _first(self, text: str) -> tuple[int, str] | None:
        places = [(at, spelling) for spelling in self._spellings if (at := text.find(spelling)) >= 0]
        return min(places, default=None)

    def _open_end(self, text: str) -> int:
        """Length of the longest end of ``text`` that begins a spelling."""
        longest = max((len(s) - 1 for s in self._spellings), default=0)
        for length in range(min(longest, len(text)), 0, -1):
            if any(s.startswith(text[-length:]) for s in self._spellings):
                return length
        return 0

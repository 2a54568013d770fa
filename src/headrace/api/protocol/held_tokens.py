"""HeldTokens: tokens whose text is not out yet, so that a reader of tokens sees no more than a reader of the text.

Text is held back where it may become a stop string. Counted are characters as the told text has them: a byte that is no
character's is one there, though what it is told as takes three.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from ..text.tokenizer import Tokenizer


class HeldTokens:
    """``put`` what came, ``take`` what is out. ``skips_special`` as for the text."""

    def __init__(self, tokenizer: Tokenizer, skips_special: bool) -> None:
        self._tokenizer = tokenizer
        self._skips_special = skips_special
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._ids: list[int] = []
        self._ends: list[int | None] = []  # characters of all the text to a token's end; None: inside a character
        self._length = 0  # characters of all tokens
        self._out = 0  # of those that were taken
        self._tail = ""  # told text behind them

    def put(self, ids: Sequence[int], text: str) -> None:
        """Tokens that came, and text that was told meanwhile."""
        self._tail += text
        for index in ids:
            raw = self._tokenizer.visible_bytes(index, self._skips_special)
            if size := len(self._decoder.decode(raw)):  # a character that was begun before is its first
                self._ends = [self._length + 1 if end is None else end for end in self._ends]
            self._length += size
            self._ids.append(index)
            self._ends.append(None if self._decoder.getstate()[0] else self._length)

    def take(self) -> list[int]:
        """Tokens whose text is out to its end."""
        told, count, out = self._out + len(self._tail), 0, self._out
        for end in self._ends:
            if end is None or end > told:
                break
            count, out = count + 1, end
        self._tail, self._out = self._tail[out - self._out :], out
        ids, self._ids, self._ends = self._ids[:count], self._ids[count:], self._ends[count:]
        return ids

    def take_all(self) -> list[int]:
        """The text is over: nothing is held back any more."""
        ids, self._ids, self._ends, self._tail = self._ids, [], [], ""
        return ids

    @property
    def split(self) -> tuple[int, str] | None:
        """The token of which only a part was told, and that part; None where there is none."""
        return (self._ids[0], self._tail) if self._ids and self._tail else None

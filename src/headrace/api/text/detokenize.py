"""Token ids to text, piece by piece, for streams.

Invariant: the pushed pieces plus the flush are, joined, exactly ``Tokenizer.decode`` of all the ids,
however they were cut. A piece never holds half a character. Each id is looked at once.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from .tokenizer import Tokenizer


class IncrementalDetokenizer:
    """The text of one growing sequence.

    ``continues=True`` says that the ids follow other text (an answer follows its prompt), see ``decode``.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = True, continues: bool = False) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip = tokenizer.strips_first_space and not continues

    def push(self, ids: Iterable[int]) -> str:
        """Text that became certain with ``ids``. Bytes of an unfinished character wait for the next push."""
        raw = b"".join(self._tokenizer.visible_bytes(index, self._skip_special) for index in ids)
        return self._start_stripped(self._decoder.decode(raw))

    def flush(self) -> str:
        """The end of the text: U+FFFD if a character was left unfinished, else empty."""
        return self._start_stripped(self._decoder.decode(b"", final=True))

    def _start_stripped(self, text: str) -> str:
        if self._strip and text:
            self._strip = False
            return text.removeprefix(" ")
        return text

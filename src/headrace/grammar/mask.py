"""TokenMask: which ids a grammar allows next, one bit per id, 32 ids to a word, the lowest bit first."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

WordArray = NDArray[np.int32]


def empty_words(vocab_size: int) -> WordArray:
    """One row of words that allows nothing."""
    return np.zeros((vocab_size + 31) // 32, dtype=np.int32)


def allowed(words: WordArray, vocab_size: int) -> NDArray[np.bool_]:
    """(vocab_size,): True where the id's bit is set."""
    bits = np.unpackbits(words.view(np.uint8), bitorder="little", count=vocab_size)
    return bits.view(np.bool_)

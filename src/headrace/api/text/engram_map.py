"""The compressed token ids that Engram hashes: tokens that read alike share one. Text in, numbers out.

The rule is part of trained models: two ids that a model was trained to hash alike must come out alike here.
"""

from __future__ import annotations

import re
import unicodedata

import numpy as np
from numpy.typing import NDArray

from .tokenizer import Tokenizer

UNDECODABLE = "\N{REPLACEMENT CHARACTER}"
SPACES = re.compile(r"[ \t\r\n]+")


def engram_map(tokenizer: Tokenizer) -> NDArray[np.int32]:
    """Compressed id of every id of the tokenizer, numbered by first appearance."""
    numbers: dict[str, int] = {}
    ids = range(tokenizer.vocab_size)
    return np.array([numbers.setdefault(_key(tokenizer, i), len(numbers)) for i in ids], dtype=np.int32)


def _key(tokenizer: Tokenizer, index: int) -> str:
    """What a token is known by. Parts of characters have no text and stay apart by their spelling."""
    text = tokenizer.decode([index], skip_special=False, continues=True)
    return tokenizer.token_text(index) if UNDECODABLE in text else normalised(text) or text


def normalised(text: str) -> str:
    """Compatibility forms folded, no accents, no case, runs of space as one, ends stripped; a lone space stays."""
    decomposed = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text))
    bare = "".join(c for c in decomposed if unicodedata.category(c) != "Mn").lower()
    spaced = SPACES.sub(" ", bare)
    return spaced if spaced == " " else spaced.strip()

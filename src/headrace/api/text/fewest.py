"""The fewest tokens that a text can become: a bound that costs nothing, so that what cannot fit is never tokenized.

Sound or silent: where a vocabulary's rules may drop or fuse characters, nothing is claimed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tokenizers

from .pieces import STAND_IN, PieceKind, PieceRule

NFC_SHRINKS = 3
"""Composition (Unicode's NFC) turns at most this many bytes into one: three Hangul letters of 3 bytes each into a
syllable of 3, four Greek signs of 2 bytes each into one of 3."""

KEEPS_ALL = {"ByteLevel", "Split", "Digits", "Punctuation", "Metaspace", "Prepend", "NFC"}


@dataclass(frozen=True, slots=True)
class Density:
    """``most_bytes``: of text that one token can stand for. ``silent``: bytes that may come to no token at all."""

    most_bytes: int
    silent: bytes = b""

    def fewest(self, text: str) -> int:
        """Tokens that ``text`` comes to at least."""
        raw = text.encode("utf-8", "replace")  # for a lone surrogate that is fewer bytes than it is encoded as
        return -(-len(raw.translate(None, self.silent)) // self.most_bytes)


def density(backend: tokenizers.Tokenizer, rule: PieceRule) -> Density | None:
    """None where nothing can be said."""
    try:
        steps = [*_steps(backend.normalizer), *_steps(backend.pre_tokenizer)]
    except Exception:  # the library raises nothing narrower for parts that cannot be written down
        return None
    vocabulary = backend.get_vocab()
    silent = _silent(backend, rule, vocabulary)
    composes = any(step["type"] == "NFC" for step in steps)
    if silent is None or (silent and composes) or not all(map(_keeps_text, steps)):
        return None
    if any(token.lstrip or token.rstrip for token in backend.get_added_tokens_decoder().values()):
        return None  # such a token takes any amount of white space in
    longest = max(len(piece.encode()) for piece in vocabulary)
    return Density(longest * (NFC_SHRINKS if composes else 1), silent)


def _steps(part: Any) -> Iterator[dict[str, Any]]:
    """What a normalizer or pre-tokenizer does, one after the other."""
    if part is not None:
        yield from _flat(json.loads(part.__getstate__()))


def _flat(step: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if step["type"] != "Sequence":
        yield step
    for inner in (*step.get("normalizers", ()), *step.get("pretokenizers", ())):
        yield from _flat(inner)


def _keeps_text(step: dict[str, Any]) -> bool:
    """Nothing of the text is lost; only spaces may be respelled."""
    if step["type"] == "Replace":
        return bool(step["pattern"].get("String") == " " and step["content"])
    return step["type"] in KEEPS_ALL and step.get("behavior") != "Removed"


def _silent(backend: tokenizers.Tokenizer, rule: PieceRule, vocabulary: dict[str, int]) -> bytes | None:
    """Bytes without a piece of their own: they vanish, or a whole run of them becomes one unknown token. None: more
    than bytes may."""
    if rule.kind is PieceKind.BYTE_LEVEL:
        return bytes(byte for byte, char in STAND_IN.items() if char not in vocabulary)
    if rule.kind is PieceKind.SENTENCEPIECE and getattr(backend.model, "byte_fallback", False):
        return b"" if all(f"<0x{byte:02X}>" in vocabulary for byte in range(256)) else None
    return None

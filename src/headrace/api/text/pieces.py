"""From a token's spelling in the vocabulary to the bytes it stands for.

Decoding is defined here once, as "join the bytes, then read UTF-8", for whole texts and for streams alike.
Four families of spelling exist: byte-level BPE (each byte has a printable stand-in), SentencePiece (U+2581
for a space, ``<0x0A>`` for a byte), WordPiece (``##`` joins) and plain text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

SPACE_MARK = "\u2581"
BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class PieceKind(Enum):
    BYTE_LEVEL = "byte_level"
    SENTENCEPIECE = "sentencepiece"
    WORDPIECE = "wordpiece"
    PLAIN = "plain"


def byte_alphabet() -> dict[str, int]:
    """Stand-in character -> byte, GPT-2's table: printable Latin-1 is itself, the rest follow from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


ALPHABET = byte_alphabet()
STAND_IN = {byte: char for char, byte in ALPHABET.items()}


@dataclass(frozen=True, slots=True)
class PieceRule:
    """``strips_first_space``: encoding puts a space before a text, so decoding its start removes one."""

    kind: PieceKind
    strips_first_space: bool = False

    def to_bytes(self, piece: str) -> bytes:
        """Bytes of an ordinary vocabulary piece. Added tokens are their spelling verbatim; not for them."""
        if self.kind is PieceKind.BYTE_LEVEL:
            return _from_stand_ins(piece)
        if self.kind is PieceKind.SENTENCEPIECE:
            byte = BYTE_PIECE.fullmatch(piece)
            return bytes([int(byte[1], 16)]) if byte else piece.replace(SPACE_MARK, " ").encode()
        if self.kind is PieceKind.WORDPIECE:
            return piece[2:].encode() if piece.startswith("##") else b" " + piece.encode()
        return piece.encode()

    def is_space_run(self, piece: str) -> bool:
        return self.kind is PieceKind.SENTENCEPIECE and set(piece) == {SPACE_MARK}

    def spellings(self, char: str) -> list[list[str]]:
        """Ways to write one character in single pieces, best first; each way is a list of pieces."""
        raw = char.encode()
        if self.kind is PieceKind.BYTE_LEVEL:
            return [[STAND_IN[byte] for byte in raw]]
        if self.kind is PieceKind.SENTENCEPIECE:
            return [[char.replace(" ", SPACE_MARK)], [f"<0x{byte:02X}>" for byte in raw]]
        return [["##" + char], [char]] if self.kind is PieceKind.WORDPIECE else [[char]]


def _from_stand_ins(piece: str) -> bytes:
    try:
        return bytes([ALPHABET[char] for char in piece])
    except KeyError:  # a piece with a character outside the alphabet was never made of stand-ins
        return piece.encode()

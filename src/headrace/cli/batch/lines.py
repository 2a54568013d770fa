"""The input file, line by line, in bounded memory. What a line says is the business of ``wishes``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

MAX_LINE_BYTES = 64 << 20
BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Line:
    """``number`` counts from 1, blank lines included. ``data`` is None for a line beyond ``MAX_LINE_BYTES``."""

    number: int
    data: bytes | None
    num_bytes: int


def read_lines(file: BinaryIO) -> Iterator[Line]:
    """All lines that are not blank."""
    number = 0
    while raw := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        num_bytes = len(raw)
        if num_bytes > MAX_LINE_BYTES:
            yield Line(number, None, num_bytes + _skip_rest(file, raw))
            continue
        data = raw.removeprefix(BOM) if number == 1 else raw
        if not data.isspace() and data:
            yield Line(number, data, num_bytes)


def _skip_rest(file: BinaryIO, piece: bytes) -> int:
    """Reads on to the end of the line; how many bytes that were."""
    skipped = 0
    while piece and not piece.endswith(b"\n"):
        piece = file.readline(MAX_LINE_BYTES)
        skipped += len(piece)
    return skipped

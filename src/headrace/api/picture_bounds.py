"""How many parts a picture file is made of: what a decoder walks through one by one, whatever the picture's sides.

Pixels alone do not bound a decoder's work. A JPEG may go over all of its pixels again with every scan of some bytes,
and joins what thousands of its segments say, each time copying what it has. So parts are counted first, and counting
ends where there are too many. Decodes nothing, and refuses nothing for being damaged: that is the decoder's to say.
"""

from __future__ import annotations

import re

from headrace.contract.errors import InvalidRequest

MOST_SCANS = 64  # of a JPEG; encoders write about ten
MOST_SEGMENTS = 1 << 12  # of a JPEG
MOST_CHUNKS = 1 << 14  # of a PNG
JPEG, PNG = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"
# Behind these no length follows, or decoders look for none; restarts (d0 to d7) belong to the pixels of a scan.
ALONE = frozenset((0x01, 0xC8, 0xD8, 0xD9, *range(0xF0, 0xFE)))
SCAN = 0xDA
_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")


def check_parts(data: bytes | bytearray, field: str) -> None:
    """Raises InvalidRequest naming ``field`` for a file of more parts than any encoder writes."""
    if data.startswith(JPEG):
        _check_jpeg(data, field)
    elif data.startswith(PNG):
        _check_png(data, field)


def _check_jpeg(data: bytes | bytearray, field: str) -> None:
    at = segments = scans = 0
    while (marker := _MARKER.search(data, at)) is not None:
        at, kind = marker.end(), data[marker.start() + 1]
        segments, scans = segments + 1, scans + (kind == SCAN)
        if scans > MOST_SCANS or segments > MOST_SEGMENTS:
            words = f"has more than {MOST_SCANS} scans or {MOST_SEGMENTS} segments"
            raise InvalidRequest(field, f"cannot be decoded: {words}")
        if kind not in ALONE:
            at += max(2, int.from_bytes(data[at : at + 2], "big"))


def _check_png(data: bytes | bytearray, field: str) -> None:
    at, chunks = len(PNG), 0
    while at < len(data):
        chunks += 1
        if chunks > MOST_CHUNKS:
            raise InvalidRequest(field, f"cannot be decoded: has more than {MOST_CHUNKS} chunks")
        at += 12 + int.from_bytes(data[at : at + 4], "big")

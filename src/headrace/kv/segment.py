"""How values lie in a segment file: pages of 4 KiB, a header page before each payload, checksums for everything.

    segment  = head page | value... | foot page (once sealed)
    value    = header page: magic, version, kind, class, depth, turn, key, namespace, tenant, length,
               CRC-32C of every 64 KiB of payload; the page's own CRC-32C in its last four bytes
             | payload, padded to whole pages

A value never moves and is never changed, but a purged one is overwritten with zeros under a tombstone header, which
keeps the length so that a scan finds what lies behind it. Integers are little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace._core import crc32c

from .disk import Disk, read_all

PAGE = 4096
CRC_BYTES = 1 << 16  # payload bytes under one checksum
HEADER = struct.Struct("<8sHBBII32s16s16sQI")
TAIL = struct.Struct("<I")
VERSION = 1
VALUE, TOMBSTONE, HEAD, FOOT = b"HRKVval1", b"HRKVdead", b"HRKVseg1", b"HRKVend1"
MOST_CRCS = (PAGE - HEADER.size - TAIL.size) // 4
MOST_VALUE_BYTES = MOST_CRCS * CRC_BYTES

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class ValueHead:
    """What a header page says. ``name_space`` and ``tenant`` are 16-byte tags. ``length`` is the payload's."""

    key: bytes
    kind: int
    length: int
    name_space: bytes
    tenant: bytes
    depth: int = 0
    turn: int = 1
    ttl_class: int = 0
    dead: bool = False
    crcs: tuple[int, ...] = ()

    @property
    def span(self) -> int:
        """Bytes from this value's header to what follows it."""
        return PAGE + padded(self.length)


def padded(length: int) -> int:
    """Whole pages."""
    return -(-length // PAGE) * PAGE


def checksum(data: Bytes) -> int:
    return int(crc32c(data))


def page_crcs(payload: Bytes) -> tuple[int, ...]:
    """One checksum per started 64 KiB."""
    return tuple(checksum(payload[i : i + CRC_BYTES]) for i in range(0, len(payload), CRC_BYTES))


def _closed(page: bytearray) -> bytes:
    """The page with its own checksum in its last bytes."""
    TAIL.pack_into(page, PAGE - TAIL.size, checksum(np.frombuffer(page, np.uint8, PAGE - TAIL.size)))
    return bytes(page)


def encode_head(head: ValueHead) -> bytes:
    """A header page."""
    page = bytearray(PAGE)
    magic = TOMBSTONE if head.dead else VALUE
    fields = (head.kind, head.ttl_class, head.depth, head.turn, head.key, head.name_space, head.tenant)
    HEADER.pack_into(page, 0, magic, VERSION, *fields, head.length, len(head.crcs))
    struct.pack_into(f"<{len(head.crcs)}I", page, HEADER.size, *head.crcs)
    return _closed(page)


def decode_head(page: Bytes) -> ValueHead | None:
    """What a header page says; None when it is none or damaged."""
    raw = page.tobytes()
    if len(raw) != PAGE or raw[:8] not in (VALUE, TOMBSTONE):
        return None
    if TAIL.unpack_from(raw, PAGE - TAIL.size)[0] != checksum(page[: PAGE - TAIL.size]):
        return None
    magic, version, kind, cls, depth, turn, key, space, tenant, length, count = HEADER.unpack_from(raw)
    if version != VERSION or count > MOST_CRCS or length > MOST_VALUE_BYTES:
        return None
    crcs = struct.unpack_from(f"<{count}I", raw, HEADER.size)
    return ValueHead(key, kind, length, space, tenant, depth, turn, cls, magic == TOMBSTONE, crcs)


def encode_mark(magic: bytes, segment: int, count: int) -> bytes:
    """The head or foot page of a segment."""
    page = bytearray(PAGE)
    struct.pack_into("<8sQQ", page, 0, magic, segment, count)
    return _closed(page)


def is_mark(page: Bytes, magic: bytes, segment: int) -> bool:
    """Whether a page is the intact head or foot of this segment."""
    raw = page.tobytes()
    whole = len(raw) == PAGE and TAIL.unpack_from(raw, PAGE - TAIL.size)[0] == checksum(page[: PAGE - TAIL.size])
    return whole and struct.unpack_from("<8sQ", raw) == (magic, segment)


def read_page(disk: Disk, fd: int, offset: int) -> Bytes | None:
    """One page; None where the file ends before."""
    page = np.empty(PAGE, np.uint8)
    return page if read_all(disk, fd, page.data, offset) else None


def read_payload(disk: Disk, fd: int, offset: int, head: ValueHead) -> Bytes | None:
    """The payload behind a header at ``offset``; None unless every checksum agrees."""
    payload = np.empty(head.length, np.uint8)
    if not read_all(disk, fd, payload.data, offset + PAGE):
        return None
    return payload if page_crcs(payload) == head.crcs else None


def scan(disk: Disk, fd: int, segment: int) -> Iterator[tuple[int, ValueHead]]:
    """Every complete value from the start, tombstones included, up to the first page that is no header.

    Whoever asks for payloads checks them: a header may be whole where its payload is not.
    """
    first = read_page(disk, fd, 0)
    if first is None or not is_mark(first, HEAD, segment):
        return
    offset, size = PAGE, disk.size(fd)
    while (page := read_page(disk, fd, offset)) is not None:
        head = decode_head(page)
        if head is None or offset + PAGE + head.length > size:
            return
        yield offset, head
        offset += head.span

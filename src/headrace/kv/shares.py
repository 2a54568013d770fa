"""Shares of a value: ten of data and two of parity, of which any ten give the value back, and what each share says.

    share = magic, version, index, kind, key, the value's length and CRC-32C, the fragment's CRC-32C
          | CRC-32C of that | fragment

A fragment is what liberasurecode makes of the value with ISA-L's Cauchy matrix over GF(2^8): its own header, then a
tenth of the value, or a sum of tenths. A share that is damaged, foreign or of another value must never be decoded: it
is told by its checksums before, and a value by its own after. Reads and writes nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.contract.errors import StoreError
from headrace.contract.extras import how_to_get
from headrace.contract.ports import Bytes

from .segment import checksum

DATA, PARITY = 10, 2
SHARES = DATA + PARITY
CODE = "isa_l_rs_cauchy"
MAGIC, VERSION = b"HRKVshr1", 1
HEADER = struct.Struct("<8sBBB32sQII")
TAIL = struct.Struct("<I")
HEAD_BYTES = HEADER.size + TAIL.size


@dataclass(frozen=True, slots=True)
class Stripe:
    """Which value of a name a share is of: shares of different stripes do not belong together."""

    length: int
    crc: int


@dataclass(frozen=True, slots=True)
class Share:
    """One of twelve. ``fragment`` is checked."""

    index: int
    stripe: Stripe
    fragment: Bytes


class Code:
    """Ten and two. Raises StoreError without pyeclib, or where its ISA-L cannot be used. Thread-safe."""

    def __init__(self) -> None:
        try:
            from pyeclib.ec_iface import ECDriver
        except ImportError as error:
            raise StoreError("striped", f"needs pyeclib: {how_to_get('striped')}") from error
        try:
            self._driver: Any = ECDriver(k=DATA, m=PARITY, ec_type=CODE)
        except Exception as error:  # pyeclib's errors share no base
            raise StoreError("striped", f"no {CODE}: {error}") from error

    def cut(self, key: bytes, kind: int, value: Bytes) -> list[Bytes]:
        """The shares of a value, by index."""
        crc = checksum(value)
        fragments = self._driver.encode(value.tobytes())
        return [_share(index, kind, key, len(value), crc, fragment) for index, fragment in enumerate(fragments)]

    def join(self, shares: Mapping[int, Share]) -> Bytes | None:
        """The value of ten shares of one stripe, by index; None unless it is the one that was cut."""
        ordered = [shares[index] for index in sorted(shares)][:DATA]
        try:
            whole = self._driver.decode([share.fragment.tobytes() for share in ordered])
        except Exception:  # too few, or fragments that do not belong together
            return None
        value = np.frombuffer(whole, np.uint8)
        stripe = ordered[0].stripe
        return value if len(value) == stripe.length and checksum(value) == stripe.crc else None


def _share(index: int, kind: int, key: bytes, length: int, value_crc: int, fragment: bytes) -> Bytes:
    body = np.frombuffer(fragment, np.uint8)
    head = HEADER.pack(MAGIC, VERSION, index, kind, key, length, value_crc, checksum(body))
    return np.concatenate([np.frombuffer(head + TAIL.pack(_sum(head)), np.uint8), body])


def _sum(head: bytes) -> int:
    return checksum(np.frombuffer(head, np.uint8))


def read_share(raw: Bytes, key: bytes, kind: int) -> Share | None:
    """A share of this name; None for anything else."""
    if len(raw) <= HEAD_BYTES:
        return None
    head, fragment = raw[: HEADER.size].tobytes(), raw[HEAD_BYTES:]
    if TAIL.unpack(raw[HEADER.size : HEAD_BYTES].tobytes())[0] != _sum(head):
        return None
    magic, version, index, its_kind, its_key, length, value_crc, crc = HEADER.unpack(head)
    if (magic, version, its_key, its_kind) != (MAGIC, VERSION, key, kind) or index >= SHARES:
        return None
    return Share(index, Stripe(length, value_crc), fragment) if checksum(fragment) == crc else None

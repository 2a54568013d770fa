"""Narrow number formats of cache records, decoded: bytes become the float32 values they stand for, exactly.

Pure functions of the bytes; making them is the business of who writes records. Formats (OCP Microscaling 1.0, and a
variant with 8-bit scales):

* e4m3: 8 bits, largest value 448 · e2m1: 4 bits, magnitudes ``E2M1``, the sign in bit 3
* ue8m0: a power of two, stored as its exponent + 127
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
MX_COLUMNS = 32  # values per power-of-two scale
KV4_COLUMNS = 16  # values per e4m3 scale of the compressed KV

# Decoding is looking up: one operation in place of several, and the same values. ``index_select`` is the quick one.
BYTES = torch.arange(256, dtype=torch.uint8)
E4M3 = BYTES.view(torch.float8_e4m3fn).to(torch.float32)
POWERS = torch.tensor([2.0 ** (e - 127) for e in range(255)] + [math.inf])
PAIRS = torch.tensor([[(*E2M1, *(-v for v in E2M1))[code] for code in (byte & 0xF, byte >> 4)] for byte in range(256)])


def power_of_two(byte: Tensor) -> Tensor:
    """2^(byte - 127) in float32, exactly; byte 0 is the subnormal 2^-127, byte 255 (no number) gives infinity."""
    return POWERS[byte.int()]


def decode_e4m3(byte: Tensor) -> Tensor:
    return E4M3.index_select(0, byte.flatten().int()).view(byte.shape)


def unpack_e2m1(packed: Tensor) -> Tensor:
    """(..., n/2) bytes -> (..., n) values."""
    return PAIRS.index_select(0, packed.flatten().int()).view(*packed.shape[:-1], 2 * packed.shape[-1])


def unpack_mxfp8(record: Tensor) -> Tensor:
    """Inverse of ``pack_mxfp8``: (..., n + n/32) bytes -> (..., n) float32."""
    columns = record.shape[-1] * MX_COLUMNS // (MX_COLUMNS + 1)
    codes = record[..., :columns].contiguous()
    scales = power_of_two(record[..., columns:]).unsqueeze(-1)
    return (decode_e4m3(codes).unflatten(-1, (-1, MX_COLUMNS)) * scales).flatten(-2)


def unpack_mxfp4(packed: Tensor, scale: Tensor) -> Tensor:
    values = unpack_e2m1(packed).unflatten(-1, (-1, MX_COLUMNS))
    return (values * power_of_two(scale).unsqueeze(-1)).flatten(-2)


def unpack_kv4(record: Tensor) -> Tensor:
    """Inverse of ``pack_kv4``: (..., n/2 + n/16) bytes -> (..., n) float32."""
    packed_bytes = record.shape[-1] * 8 // 9
    values = unpack_e2m1(record[..., :packed_bytes]).unflatten(-1, (-1, KV4_COLUMNS))
    scales = decode_e4m3(record[..., packed_bytes:].contiguous()).unsqueeze(-1)
    return (values * scales).flatten(-2)

"""The number formats of the family: how values become bytes in caches and checkpoints, and come back.

Pure functions on tensors; each result is a function of its own row. Rounding is part of the model: every engine that
runs these weights must round in the same way, so nothing here may be "improved". Formats (OCP Microscaling 1.0, and
the family's own variant for the compressed KV):

* e4m3: 8 bits, largest value 448, rounded to nearest even · e2m1: 4 bits, magnitudes ``E2M1``, ties to the even code
* ue8m0: a power of two, stored as its exponent + 127
"""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.kernels.record_formats import KV4_COLUMNS as KV4_COLUMNS
from headrace.kernels.record_formats import MX_COLUMNS as MX_COLUMNS
from headrace.kernels.record_formats import decode_e4m3 as decode_e4m3
from headrace.kernels.record_formats import power_of_two as power_of_two
from headrace.kernels.record_formats import unpack_kv4 as unpack_kv4
from headrace.kernels.record_formats import unpack_mxfp4 as unpack_mxfp4
from headrace.kernels.record_formats import unpack_mxfp8 as unpack_mxfp8

E4M3_MAX, E2M1_MAX = 448.0, 6.0
# Smallest magnitudes that scales are made for: below them a group counts as this large.
LEAST_E4M3, LEAST_MXFP4, LEAST_KV4 = 1e-4, 6.0 * 2.0**-126, 6.0 * 2.0**-9


def power_of_two_above(x: Tensor) -> Tensor:
    """Bytes e + 127 of the least 2^e >= x, for positive normal float32 values; read off the exponent bits."""
    return _exponent_above(x).to(torch.uint8)


def _exponent_above(x: Tensor) -> Tensor:
    """The same, int32: a mantissa that is not zero carries into the exponent."""
    return (x.contiguous().view(torch.int32) + 0x7FFFFF) >> 23


def encode_e4m3(x: Tensor) -> Tensor:
    """Bytes of the nearest e4m3 values; what is too large saturates."""
    return x.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).view(torch.uint8)


def encode_e2m1(x: Tensor) -> Tensor:
    """Codes 0..15 (sign in bit 3) of the nearest e2m1 values, ties to the even code; what is too large saturates."""
    size = x.abs()
    code = (size > 0.25).to(torch.uint8)
    for halfway, even_is_above in ((0.75, True), (1.25, False), (1.75, True), (2.5, False), (3.5, True), (5.0, False)):
        code += size >= halfway if even_is_above else size > halfway
    return code | (x < 0).to(torch.uint8) << 3


def pack_nibbles(code: Tensor) -> Tensor:
    """(..., n) codes -> (..., n/2) bytes, the even column in the low nibble."""
    return code[..., 0::2] | code[..., 1::2] << 4


def _groups(x: Tensor, columns: int, least: float) -> tuple[Tensor, Tensor]:
    """``x`` (..., n) as (..., n/columns, columns), and the largest magnitude of each group, at least ``least``."""
    grouped = x.unflatten(-1, (-1, columns))
    return grouped, grouped.abs().amax(-1, keepdim=True).clamp(min=least)


def pack_mxfp8(x: Tensor) -> Tensor:
    """(..., n) -> (..., n + n/32) bytes: e4m3 codes, then one ue8m0 scale per 32 columns."""
    grouped, largest = _groups(x, MX_COLUMNS, LEAST_E4M3)
    exponent = _exponent_above(largest / E4M3_MAX)
    codes = encode_e4m3(grouped / (exponent << 23).view(torch.float32))
    return torch.cat((codes.flatten(-2), exponent.to(torch.uint8).flatten(-2)), dim=-1)


def round_mxfp8(x: Tensor) -> Tensor:
    """``x`` as e4m3 per 32 columns can hold it: what the inputs of 4- and 8-bit linears go through. Packing and
    unpacking give the same."""
    grouped, largest = _groups(x, MX_COLUMNS, LEAST_E4M3)
    scale = (_exponent_above(largest / E4M3_MAX) << 23).view(torch.float32)
    held = (grouped / scale).clamp_(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
    return (decode_e4m3(held.view(torch.uint8)) * scale).view(x.shape)


def pack_mxfp4(x: Tensor) -> tuple[Tensor, Tensor]:
    """(..., n) -> (..., n/2) packed e2m1 codes and (..., n/32) ue8m0 scales: index queries and keys."""
    grouped, largest = _groups(x, MX_COLUMNS, LEAST_MXFP4)
    scale = power_of_two_above(largest / E2M1_MAX)
    codes = encode_e2m1(grouped / power_of_two(scale))
    return pack_nibbles(codes.flatten(-2)), scale.flatten(-2)


def pack_kv4(x: Tensor) -> Tensor:
    """(..., n) -> (..., n/2 + n/16) bytes: packed e2m1 codes, then one e4m3 scale per 16 columns."""
    grouped, largest = _groups(x, KV4_COLUMNS, LEAST_KV4)
    scale = encode_e4m3(largest / E2M1_MAX)
    codes = encode_e2m1(grouped / decode_e4m3(scale))
    return torch.cat((pack_nibbles(codes.flatten(-2)), scale.flatten(-2)), dim=-1)


# -- weights of a checkpoint ------------------------------------------------------------------------------------------


def fp8_tiles(codes: Tensor, scale: Tensor) -> Tensor:
    """e4m3 bytes (n, k) with one ue8m0 byte per 32 x 32 tile -> float32 (n, k), exact."""
    n, k = codes.shape
    rows = power_of_two(scale).repeat_interleave(MX_COLUMNS, 0)[:n]
    return decode_e4m3(codes) * rows.repeat_interleave(MX_COLUMNS, 1)[:, :k]


def fp4_rows(packed: Tensor, scale: Tensor) -> Tensor:
    """e2m1 bytes (n, k/2) with one ue8m0 byte per row and 32 columns -> float32 (n, k), exact."""
    return unpack_mxfp4(packed, scale)


def fp8_rows(codes: Tensor, scale: Tensor) -> Tensor:
    """e4m3 bytes (n, k) with one ue8m0 byte per row and 32 columns -> float32 (n, k), exact."""
    return (decode_e4m3(codes).unflatten(-1, (-1, MX_COLUMNS)) * power_of_two(scale).unsqueeze(-1)).flatten(-2)

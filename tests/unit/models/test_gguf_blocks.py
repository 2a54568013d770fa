"""Block formats: random blocks, decoded by the reader and by the formulas of the format written out here."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from gguf_files import gguf_bytes, metadata_of
from tiny_models import CONFIGS

from headrace.models.weights import open_checkpoint

NAME = "model.embed_tokens.weight"
ROWS, COLUMNS = 3, 512


def half(raw: bytes) -> float:
    return float(struct.unpack("<e", raw)[0])


def q4_0(b: bytes) -> Iterator[float]:
    d, qs = half(b[:2]), b[2:]
    yield from (d * ((q & 15) - 8) for q in qs)
    yield from (d * ((q >> 4) - 8) for q in qs)


def q4_1(b: bytes) -> Iterator[float]:
    d, m, qs = half(b[:2]), half(b[2:4]), b[4:]
    yield from (d * (q & 15) + m for q in qs)
    yield from (d * (q >> 4) + m for q in qs)


def fifth_bit(b: bytes, i: int) -> int:
    return (int.from_bytes(b, "little") >> i & 1) << 4


def q5_0(b: bytes) -> Iterator[float]:
    d, high, qs = half(b[:2]), b[2:6], b[6:]
    yield from (d * ((q & 15 | fifth_bit(high, i)) - 16) for i, q in enumerate(qs))
    yield from (d * ((q >> 4 | fifth_bit(high, i + 16)) - 16) for i, q in enumerate(qs))


def q5_1(b: bytes) -> Iterator[float]:
    d, m, high, qs = half(b[:2]), half(b[2:4]), b[4:8], b[8:]
    yield from (d * (q & 15 | fifth_bit(high, i)) + m for i, q in enumerate(qs))
    yield from (d * (q >> 4 | fifth_bit(high, i + 16)) + m for i, q in enumerate(qs))


def q8_0(b: bytes) -> Iterator[float]:
    d = half(b[:2])
    yield from (d * q for q in struct.unpack("<32b", b[2:]))


def k_scale_min(s: bytes, j: int) -> tuple[int, int]:
    """Six-bit scale and minimum number ``j`` of eight, out of twelve packed bytes."""
    if j < 4:
        return s[j] & 63, s[j + 4] & 63
    return s[j + 4] & 15 | s[j - 4] >> 6 << 4, s[j + 4] >> 4 | s[j] >> 6 << 4


def q4_k(b: bytes) -> Iterator[float]:
    d, dmin, scales, qs = half(b[:2]), half(b[2:4]), b[4:16], b[16:]
    for sub in range(8):
        scale, minimum = k_scale_min(scales, sub)
        for i in range(32):
            q = qs[sub // 2 * 32 + i] >> 4 * (sub % 2) & 15
            yield d * scale * q - dmin * minimum


def q5_k(b: bytes) -> Iterator[float]:
    d, dmin, scales, high, qs = half(b[:2]), half(b[2:4]), b[4:16], b[16:48], b[48:]
    for sub in range(8):
        scale, minimum = k_scale_min(scales, sub)
        for i in range(32):
            q = qs[sub // 2 * 32 + i] >> 4 * (sub % 2) & 15 | (high[i] >> sub & 1) << 4
            yield d * scale * q - dmin * minimum


def q6_k(b: bytes) -> Iterator[float]:
    low, high, scales, d = b[:128], b[128:192], struct.unpack("<16b", b[192:208]), half(b[208:])
    for value in range(256):
        part, quarter, i = value // 128, value % 128 // 32, value % 32
        nibble = low[part * 64 + quarter % 2 * 32 + i] >> 4 * (quarter // 2) & 15
        q = (nibble | (high[part * 32 + i] >> 2 * quarter & 3) << 4) - 32
        yield d * scales[value // 16] * q


def f16(b: bytes) -> Iterator[float]:
    yield half(b)


def bf16(b: bytes) -> Iterator[float]:
    yield float(struct.unpack("<f", b"\0\0" + b)[0])


# name -> (type number, bytes per block, values per block, offsets of half-precision fields, formula)
FORMATS: dict[str, tuple[int, int, int, tuple[int, ...], Callable[[bytes], Iterator[float]]]] = {
    "F16": (1, 2, 1, (0,), f16),
    "BF16": (30, 2, 1, (), bf16),
    "Q4_0": (2, 18, 32, (0,), q4_0),
    "Q4_1": (3, 20, 32, (0, 2), q4_1),
    "Q5_0": (6, 22, 32, (0,), q5_0),
    "Q5_1": (7, 24, 32, (0, 2), q5_1),
    "Q8_0": (8, 34, 32, (0,), q8_0),
    "Q4_K": (12, 144, 256, (0, 2), q4_k),
    "Q5_K": (13, 176, 256, (0, 2), q5_k),
    "Q6_K": (14, 210, 256, (208,), q6_k),
}


@pytest.mark.parametrize("name", FORMATS)
def test_block_format(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, block_bytes, block, halves, formula = FORMATS[name]
    blocks = [random_block(random.Random(i), block_bytes, halves) for i in range(ROWS * COLUMNS // block)]
    expected = torch.tensor([value for b in blocks for value in formula(b)]).view(ROWS, COLUMNS)
    path = tmp_path / "blocks.gguf"
    tensors = {"token_embd.weight": ((ROWS, COLUMNS), kind, b"".join(blocks))}
    path.write_bytes(gguf_bytes(metadata_of(CONFIGS["qwen2"]), tensors))
    # Slabs of a single row: the seams must not show.
    monkeypatch.setattr("headrace.kernels.quant.SLAB_VALUES", 1)
    checkpoint = open_checkpoint(path)
    tensor = checkpoint.tensor(NAME)
    assert tensor.dtype == torch.float32
    assert expected.abs().max() > 0.01
    torch.testing.assert_close(tensor, expected, rtol=1e-6, atol=1e-6)
    assert checkpoint.config["vocab_size"] == ROWS


def random_block(rng: random.Random, num_bytes: int, halves: tuple[int, ...]) -> bytes:
    raw = bytearray(rng.randbytes(num_bytes))
    for at in halves:
        raw[at : at + 2] = struct.pack("<e", rng.uniform(-0.5, 0.5))
    if not halves:  # keep the exponent of a bfloat16 small
        raw[1] = rng.choice((0x3D, 0x3E, 0xBD, 0xBE))
    return bytes(raw)

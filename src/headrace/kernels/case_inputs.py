"""Inputs of the op cases, each made from a seed alone. Shapes are small and awkward, values ordinary floats.

Attention inputs put NaN where a kernel has no business: in the null block, in blocks that are unused or lie
before the window, and in slots past a sequence's end.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from . import kv_rows
from .ops import LogitRules, SampleParams
from .quant import QuantRows, block_values, row_bytes

Args = tuple[Any, ...]  # an op's arguments, weights unpacked
NEVER = float("-inf")


def generator(seed: int) -> Generator:
    return Generator().manual_seed(seed)


def rope_table(max_pos: int, rot: int, base: float = 10000.0) -> Tensor:
    """(max_pos, 2, rot/2): cosines, then sines, of ``position * base^(-2i/rot)``."""
    frequency = base ** (-torch.arange(0, rot, 2, dtype=torch.float64) / rot)
    angle = torch.arange(max_pos, dtype=torch.float64)[:, None] * frequency
    return torch.stack((angle.cos(), angle.sin()), 1).float().contiguous()


def linear(seed: int, t: int, k: int, n: int, bias: bool = False) -> Args:
    """x (t, k), weight (n, k), bias (n) or None."""
    g = generator(seed)
    x, w = torch.randn(t, k, generator=g), torch.randn(n, k, generator=g)
    return x, w, torch.randn(n, generator=g) if bias else None


# Block format -> (offsets of half-precision fields in a block, largest integer those scale).
BLOCK_FIELDS: dict[str, tuple[tuple[int, ...], float]] = {
    "Q4_0": ((0,), 8),
    "Q4_1": ((0, 2), 15),
    "Q5_0": ((0,), 16),
    "Q5_1": ((0, 2), 31),
    "Q8_0": ((0,), 128),
    "Q4_K": ((0, 2), 63 * 15),
    "Q5_K": ((0, 2), 63 * 31),
    "Q6_K": ((208,), 128 * 32),
}


def blocks(seed: int, kind: str, n: int, k: int) -> QuantRows:
    """Random integers in every field, scales of either sign such that values lie within about [-3, 3]."""
    rng = np.random.default_rng(seed)
    data = rng.integers(0, 256, (n, row_bytes(kind, k)), np.uint8)
    in_blocks = data.reshape(-1, row_bytes(kind, block_values(kind)))
    fields, top = BLOCK_FIELDS[kind]
    for at in fields:
        halves = rng.uniform(-1, 1, (len(in_blocks), 1)) * 2 / top
        in_blocks[:, at : at + 2] = halves.astype("<f2").view(np.uint8)
    return QuantRows(kind, n, k, data)


def quantised_linear(seed: int, kinds: tuple[str, ...], t: int, k: int, n: int, bias: bool = False) -> Args:
    """x (t, k) of uneven spread, one matrix (n, k) per kind (float32 where the kind is "F32"), bias or None.

    The first row begins with a group of zeros.
    """
    g = generator(seed)
    x = torch.randn(t, k, generator=g) * torch.rand(k, generator=g)
    x[:1, :32] = 0.0
    parts = [
        torch.randn(n, k, generator=g) if kind == "F32" else blocks(seed + i, kind, n, k)
        for i, kind in enumerate(kinds)
    ]
    return x, parts, torch.randn(n * len(kinds), generator=g) if bias else None


def quantised_embedding(seed: int, kind: str, t: int, vocab: int, k: int) -> Args:
    """ids (t,), blocks (vocab, k)."""
    return embedding(seed, t, vocab, 1)[0], blocks(seed, kind, vocab, k)


def embedding(seed: int, t: int, vocab: int, k: int) -> Args:
    """ids (t,), weight (vocab, k); the first and the last row are among the ids."""
    g = generator(seed)
    ids = torch.randint(vocab, (t,), generator=g, dtype=torch.int32)
    ids[:1], ids[1:2] = vocab - 1, 0
    return ids, torch.randn(vocab, k, generator=g)


def norm(seed: int, t: int, d: int, residual: bool = False) -> Args:
    """x (t, d), perhaps a residual, weight (d), eps."""
    g = generator(seed)
    rows = [torch.randn(t, d, generator=g) for _ in range(2 if residual else 1)]
    return *rows, torch.randn(d, generator=g), 1e-5


def stored(seed: int, kind: str, n: int, k: int) -> QuantRows | Tensor:
    """A matrix (n, k) in blocks of ``kind``, or in float32 where that is "F32"."""
    return torch.randn(n, k, generator=generator(seed)) if kind == "F32" else blocks(seed, kind, n, k)


def norm_linear(seed: int, t: int, k: int, n: int, kinds: tuple[str, ...], residual: bool, bias: bool) -> Args:
    """x (t, k), residual or None, norm (k), eps, one matrix (n, k) per kind, bias or None."""
    g = generator(seed)
    x, other, weight = torch.randn(t, k, generator=g), torch.randn(t, k, generator=g), torch.rand(k, generator=g)
    parts = [stored(seed + i, kind, n, k) for i, kind in enumerate(kinds)]
    offsets = torch.randn(n * len(kinds), generator=g) if bias else None
    return x, other if residual else None, weight, 1e-5, parts, offsets


def gated_linear(seed: int, t: int, k: int, n: int, kinds: tuple[str, ...], gelu: bool) -> Args:
    """x (t, 2k), which gate, one matrix (n, k) per kind."""
    x = torch.randn(t, 2 * k, generator=generator(seed))
    return x, gelu, [stored(seed + i, kind, n, k) for i, kind in enumerate(kinds)]


def norm_argmax(seed: int, r: int, k: int, n: int, ties: bool = False, broken: bool = False) -> Args:
    """x (r, k), norm (k), eps, one float32 matrix (n, k). With ``ties`` its rows come twice, with ``broken`` the first
    row of x holds a NaN and the second an infinity."""
    g = generator(seed)
    x, weight, w = torch.randn(r, k, generator=g), torch.rand(k, generator=g), torch.randn(n, k, generator=g)
    if ties:
        w[n // 2 :] = w[: n - n // 2].clone()
    if broken:
        x[0, 0], x[1, 1] = torch.nan, torch.inf
    return x, weight, 1e-5, [w]


def rope(seed: int, t: int, heads: tuple[int, int], d: int, rot: int, interleaved: bool) -> Args:
    g = generator(seed)
    q, k = (torch.randn(t, h, d, generator=g) for h in heads)
    positions = torch.randint(512, (t,), generator=g, dtype=torch.int32)
    return q, k, positions, rope_table(512, rot), interleaved


def gate(seed: int, t: int, f: int, spread: float = 3.0) -> Args:
    """x (t, 2f), wide enough to saturate the gate both ways."""
    return (torch.randn(t, 2 * f, generator=generator(seed)) * spread,)


def ones(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A pair of caches full of ones, whatever those mean."""
    return torch.ones(shape, dtype=dtype), torch.ones(shape, dtype=dtype)


def write_kv(seed: int, t: int, heads: int, block_size: int, d: int, dtype: torch.dtype = torch.float32) -> Args:
    """New keys and values for shuffled slots, every third one padding, into caches full of ones."""
    g = generator(seed)
    k, v = (torch.randn(t, heads, d, generator=g) for _ in range(2))
    blocks = t // block_size + 2
    slots = torch.randperm(blocks * block_size, generator=g)[:t].to(torch.int32)
    slots[::3] = -1
    shape = (blocks, heads, block_size, kv_rows.row_width(dtype, d))
    return k, v, *ones(shape, dtype), slots


def heads(
    seed: int, t: int, heads: tuple[int, int], d: int, rot: int, norms: bool, dtype: torch.dtype = torch.float32
) -> Args:
    """A fused projection for shuffled slots, some of them padding, into caches full of ones."""
    g = generator(seed)
    qkv = torch.randn(t, (heads[0] + 2 * heads[1]) * d, generator=g)
    weights = [torch.randn(d, generator=g) if norms else None for _ in range(2)]
    positions = torch.randint(512, (t,), generator=g, dtype=torch.int32)
    blocks, block_size = t // 16 + 2, 16
    slots = torch.randperm(blocks * block_size, generator=g)[:t].to(torch.int32)
    slots[::3] = -1
    shape = (blocks, heads[1], block_size, kv_rows.row_width(dtype, d))
    return qkv, *weights, 1e-5, positions, rope_table(512, rot), False, *ones(shape, dtype), slots


def gather(seed: int, t: int, r: int, d: int) -> Args:
    """x (t, d) and r row numbers, repeats likely."""
    g = generator(seed)
    return torch.randn(t, d, generator=g), torch.randint(t, (r,), generator=g, dtype=torch.int32)


def axpy(seed: int, t: int, d: int, add: bool) -> Args:
    """x (t, d), a factor, and perhaps something to add."""
    g = generator(seed)
    return torch.randn(t, d, generator=g), 1.7, torch.randn(t, d, generator=g) if add else None


def attention(
    seed: int,
    slices: list[tuple[int, int]],
    heads: tuple[int, int] = (9, 3),
    d: int = 64,
    block_size: int = 32,
    window: int = 0,
    order: int = 0,
    kv: str = "float32",
) -> Args:
    """``slices`` lists (rows, sequence length). Keys and values depend on the seed and the sequence only.

    ``kv`` names the caches' format. ``order`` shuffles where blocks lie,
    ``block_size`` says how they are cut: no result may change with them.
    """
    g = generator(seed)
    q = torch.randn(sum(rows for rows, _ in slices), heads[0], d, generator=g)
    lengths = [length for _, length in slices]
    k_rows = [torch.randn(length, heads[1], d, generator=g) for length in lengths]
    v_rows = [torch.randn(length, heads[1], d, generator=g) for length in lengths]
    needs = [math.ceil(length / block_size) for length in lengths]
    ids = 1 + torch.randperm(sum(needs) + 3, generator=generator(order))
    k_cache = torch.full((len(ids) + 1, heads[1], block_size, d), math.nan)
    v_cache = k_cache.clone()
    table = torch.zeros(len(slices), max(needs, default=0) + 1, dtype=torch.int32)
    for s, (rows, length) in enumerate(slices):
        mine, ids = ids[: needs[s]], ids[needs[s] :]
        position = torch.arange(length)
        where = (mine[position // block_size], slice(None), position % block_size)
        k_cache[where], v_cache[where] = k_rows[s], v_rows[s]
        dead = max(0, length - rows - window + 1) // block_size if window else 0
        k_cache[mine[:dead]] = v_cache[mine[:dead]] = math.nan
        table[s, dead : needs[s]] = mine[dead:].to(torch.int32)
    k_cache, v_cache = (kv_rows.encode(cache, kv_rows.FORMATS[kv]) for cache in (k_cache, v_cache))
    starts = torch.tensor([0, *(rows for rows, _ in slices)]).cumsum(0).to(torch.int32)
    return q, k_cache, v_cache, table, starts, torch.tensor(lengths, dtype=torch.int32), d**-0.5, window


def _ragged(g: Generator, rows: int, vocab: int, most: int) -> tuple[Tensor, Tensor]:
    """Offsets (rows + 1) and ids, with an empty first row and repeats likely."""
    counts = torch.randint(0, most + 1, (rows,), generator=g)
    counts[:1] = 0
    offsets = torch.cat((torch.zeros(1, dtype=torch.int64), counts.cumsum(0))).to(torch.int32)
    return offsets, torch.randint(vocab, (int(offsets[-1]),), generator=g, dtype=torch.int32)


def rules(seed: int, rows: int, vocab: int) -> Args:
    """Logits with every kind of rule at once, rows without any included."""
    g = generator(seed)
    bias_offsets, bias_ids = _ragged(g, rows, vocab, 4)
    values = torch.randn(len(bias_ids), generator=g)
    values[::5] = NEVER
    allow, prompt, output, ban = (_ragged(g, rows, vocab, most) for most in (6, 9, 9, 3))
    repetition = 1 + torch.rand(rows, generator=g)
    repetition[::2] = 1
    presence, frequency = torch.randn(rows, generator=g), torch.randn(rows, generator=g)
    fields = (bias_offsets, bias_ids, values, *allow, *prompt, *output, repetition, presence, frequency, *ban)
    return torch.randn(rows, vocab, generator=g) * 3, LogitRules(*fields)


def logits(seed: int, rows: int, vocab: int, spread: float = 4.0, ties: bool = False) -> Tensor:
    x = torch.randn(rows, vocab, generator=generator(seed)) * spread
    return x.round() if ties else x


def sample(seed: int, x: Tensor, temperature: float, top_k: int, top_p: float, min_p: float) -> Args:
    """One set of knobs for all rows of x; row r draws with seed ``seed + r`` at position 7 r."""
    rows = x.shape[0]
    number = torch.arange(rows, dtype=torch.int64)
    return x, SampleParams(
        torch.full((rows,), temperature),
        torch.full((rows,), top_k, dtype=torch.int32),
        torch.full((rows,), top_p),
        torch.full((rows,), min_p),
        number + seed * 2**33,
        number * 7,
    )


def broken(x: Tensor) -> Tensor:
    """Row 0 all -inf, row 1 with a NaN, row 2 with +inf, row 3 with a single finite entry."""
    x[0], x[3] = NEVER, NEVER
    x[1, -1], x[2, 1], x[3, x.shape[1] // 2] = math.nan, math.inf, -5.0
    return x


def logprobs(seed: int, x: Tensor, n: int) -> Args:
    ids = torch.randint(x.shape[1], (x.shape[0],), generator=generator(seed), dtype=torch.int32)
    ids[1:2] = -1
    return x, ids, n

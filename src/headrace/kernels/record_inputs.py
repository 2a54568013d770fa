"""Inputs of the op cases that read byte records, each made from a seed alone.

Blocks that nobody owns, and those before a window, hold bytes that are no numbers: a kernel has no business there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .case_inputs import Args, generator
from .ops import PagedRecords
from .record_formats import E2M1

Slices = list[tuple[int, int]]  # (rows, sequence length) each
Entry = tuple[str, str, Callable[[int], Args], bool]
NO_NUMBER = 255  # as a code or as a scale


def _mxfp8(g: torch.Generator, rows: int, columns: int) -> Tensor:
    """(rows, columns + columns / 32) bytes: values below 1."""
    codes = torch.randint(256, (rows, columns), generator=g, dtype=torch.uint8)
    codes[codes & 127 == 127] = 126  # not a number, otherwise
    return torch.cat((codes, torch.randint(115, 119, (rows, columns // 32), generator=g, dtype=torch.uint8)), dim=1)


def _kv4(g: torch.Generator, rows: int, columns: int) -> Tensor:
    """(rows, columns / 2 + columns / 16) bytes: values below 2."""
    codes = torch.randint(256, (rows, columns // 2), generator=g, dtype=torch.uint8)
    return torch.cat((codes, torch.randint(1, 40, (rows, columns // 16), generator=g, dtype=torch.uint8)), dim=1)


def _pool(
    sections: list[list[Tensor]], widths: list[int], dead: list[int], size: int, order: int
) -> list[PagedRecords]:
    """Each section's rows, a tensor (n, its width) for each slice, in blocks of ``size`` of them, side by side.

    A slice's first ``dead`` rows are not there, as far as they fill blocks.
    """
    slices = len(dead)
    needs = [max([1, *(math.ceil(len(part[s]) / size) for part in sections)]) for s in range(slices)]
    ids = 1 + torch.randperm(sum(needs) + 2, generator=generator(order))
    pool = torch.full((len(ids) + 1, size * sum(widths)), NO_NUMBER, dtype=torch.uint8)
    table = torch.zeros(slices, max(needs, default=0) + 1, dtype=torch.int32)
    records = [PagedRecords(pool, table, size * sum(widths[:n]), size, width) for n, width in enumerate(widths)]
    for s in range(slices):
        mine, ids = ids[: needs[s]], ids[needs[s] :]
        for place, part in zip(records, sections):
            view = pool[:, place.offset : place.offset + size * place.width].view(len(pool), size, place.width)
            at = torch.arange(dead[s] // size * size, len(part[s]))
            view[mine[at // size], at % size] = part[s][at]
        table[s, dead[s] // size : needs[s]] = mine[dead[s] // size :].to(torch.int32)
    return records


def _starts(slices: Slices) -> Tensor:
    return torch.tensor([0, *(rows for rows, _ in slices)]).cumsum(0).to(torch.int32)


def _positions(slices: Slices) -> list[int]:
    return [p for rows, length in slices for p in range(length - rows, length)]


def latent_attention(
    seed: int,
    slices: Slices,
    heads: int = 3,
    depth: int = 64,
    reach: int = 20,
    most: int = 7,
    narrow: bool = True,
    floor: int = 0,
    size: int = 16,
    order: int = 0,
) -> Args:
    """Entry i of the shared cache stands for positions 2i and 2i + 1; ``most`` 0: there is none. Records depend on the
    seed alone; ``order`` shuffles where blocks lie, ``size`` says how they are cut."""
    g = generator(seed)
    q = torch.randn(sum(rows for rows, _ in slices), heads, depth, generator=g)
    held = [_mxfp8(g, length, depth) for _, length in slices]
    rest = [(_kv4 if narrow else _mxfp8)(g, length // 2, depth) for _, length in slices]
    chosen = torch.full((len(q), most), -1, dtype=torch.int32)
    for t, position in enumerate(_positions(slices)):
        mine = torch.randperm((position + 1) // 2, generator=g)[:most].sort().values
        chosen[t, : len(mine)] = mine.to(torch.int32)
    dead = [min(length, max(0, floor, length - rows - reach + 1)) for rows, length in slices]
    width = depth // 2 + depth // 16 if narrow else depth + depth // 32
    (window,) = _pool([held], [depth + depth // 32], dead, size, order)
    (shared,) = _pool([rest], [width], [0] * len(slices), size, order)
    # One pool holds both: the shared records' blocks lie behind those of the window.
    blocks = torch.full((len(window.blocks) + len(shared.blocks), window.blocks.shape[1]), NO_NUMBER, dtype=torch.uint8)
    blocks[: len(window.blocks)] = window.blocks
    blocks[len(window.blocks) :, : shared.blocks.shape[1]] = shared.blocks
    behind = torch.where(shared.table > 0, shared.table + len(window.blocks), 0).to(torch.int32)
    window = PagedRecords(blocks, window.table, 0, size, window.width)
    shared = PagedRecords(blocks, behind, 0, size, shared.width)
    about = (_starts(slices), torch.tensor([n for _, n in slices], dtype=torch.int32))
    floors = torch.full((len(slices),), floor, dtype=torch.int32)
    sink = torch.randn(heads, generator=g)
    return q, *about, floors, reach, window, shared if most else None, narrow, chosen if most else None, sink


def choose_entries(
    seed: int,
    slices: Slices,
    heads: int = 5,
    depth: int = 64,
    count: int = 9,
    rounded: bool = False,
    among: int = 0,
    num_blocks: int = 0,
    block: int = 8,
    size: int = 16,
    order: int = 0,
) -> Args:
    """Queries, like keys, are codes times powers of two, so that dot products are exact and many scores equal.
    ``among``: candidate blocks per row."""
    g = generator(seed)
    positions = _positions(slices)
    q = torch.tensor(E2M1)[torch.randint(8, (len(positions), heads, depth), generator=g)]
    q = q * torch.tensor([-0.5, 0.5])[torch.randint(2, q.shape, generator=g)]
    weights = torch.randint(-4, 5, (len(positions), heads), generator=g) / 8
    codes = [torch.randint(256, (n, depth // 2), generator=g, dtype=torch.uint8) for _, n in slices]
    scales = [torch.randint(122, 127, (n, depth // 32), generator=g, dtype=torch.uint8) for _, n in slices]
    coded, scaled = _pool([codes, scales], [depth // 2, depth // 32], [0] * len(slices), size, order)
    blocks = torch.full((len(positions), among), -1, dtype=torch.int32)
    for t, position in enumerate(positions):
        mine = torch.randperm(position // block + 1, generator=g)[:among].sort().values
        blocks[t, : len(mine)] = mine.to(torch.int32)
    visible = torch.tensor(positions, dtype=torch.int32) + 1
    chosen = blocks if among else None
    return q, weights, _starts(slices), visible, coded, scaled, count, rounded, chosen, num_blocks, block


def table(ragged: Slices) -> list[Entry]:
    """Every case: its name, its op, arguments by seed, whether it is worth timing. ``ragged``: slices of all kinds."""
    cases: list[Entry] = []

    def latent(name: str, slices: Slices, timed: bool = False, **options: Any) -> None:
        build = partial(latent_attention, slices=slices, **options)
        cases.append((f"latent-{name}", "latent_attention", build, timed))

    def choose(name: str, slices: Slices, timed: bool = False, **options: Any) -> None:
        cases.append((f"choose-{name}", "choose_entries", partial(choose_entries, slices=slices, **options), timed))

    for size in (2, 48):
        latent(f"kv4-block-{size}", ragged, size=size)
        latent(f"mxfp8-block-{size}", ragged, size=size, narrow=False)
        choose(f"block-{size}", ragged, size=size)
    for heads, depth in ((1, 32), (9, 96), (64, 512)):
        latent(f"heads-{heads}-{depth}", [(3, 70), (1, 65)], heads=heads, depth=depth)
    latent("window-alone", ragged, most=0, reach=33)
    latent("floor", [(9, 50), (1, 3)], floor=43)
    latent("none", [])
    choose("blocks", ragged, num_blocks=5, rounded=True)
    choose("among", ragged, among=4, count=17)
    choose("one", [(3, 40)], heads=1, depth=256, count=1, num_blocks=1)
    choose("none", [])
    for name, slices in (("decode-8x512", [(1, 512)] * 8), ("prefill-512", [(512, 512)])):
        latent(name, slices, timed=True, heads=2, depth=512, reach=64, most=64)
        choose(name, slices, timed=True, heads=8, depth=128, count=64)
    return cases

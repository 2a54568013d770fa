"""Batch invariance of the CPU backend to the bit: other rows, threads, chunks, block sizes, block tables."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from headrace.kernels import case_inputs as inputs
from headrace.kernels.cases import CASES, Case, call, prepare, take_rows
from headrace.kernels.cpu import runtime
from headrace.kernels.ops import Ops
from headrace.kernels.resolve import resolve_ops

from .bits import same_bits

ROW_CASES = [case for case in CASES if case.row_args]


def rows_of(case: Case, args: tuple[Any, ...], rows: list[int]) -> tuple[Any, ...]:
    return tuple(take_rows(arg, rows) if i in case.row_args else arg for i, arg in enumerate(args))


@pytest.mark.parametrize("case", ROW_CASES, ids=lambda case: case.name)
def test_a_row_alone_has_the_same_bits(case: Case, cpu: Ops) -> None:
    args = prepare(cpu, case, seed=5)
    count = len(args[case.row_args[0]])
    alone = [rows_of(case, args, [r]) for r in range(min(count, 24))]  # before an in-place op changes args
    reverse = rows_of(case, args, list(range(count))[::-1])
    whole = call(cpu, case.op, args)
    for mine, theirs in zip(call(cpu, case.op, reverse), whole):
        assert same_bits(mine.flip(0), theirs)
    for r, single in enumerate(alone):
        for mine, theirs in zip(call(cpu, case.op, single), whole):
            assert same_bits(mine[0], theirs[r])


def test_linear_is_the_same_for_every_number_of_rows(cpu: Ops) -> None:
    x, w, bias = inputs.linear(1, t=64, k=130, n=100, bias=True)
    packed = cpu.pack_weight(w)
    singles = torch.cat([cpu.linear(x[m : m + 1], packed, bias) for m in range(64)])
    for count in range(2, 65):
        assert same_bits(cpu.linear(x[:count], packed, bias), singles[:count])
        assert same_bits(cpu.linear(x[-count:], packed, bias), singles[-count:])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_thread_count_changes_nothing(case: Case, cpu: Ops) -> None:
    results = []
    for threads in (1, 2, 3):
        runtime.set_num_threads(threads)
        results.append(call(cpu, case.op, prepare(cpu, case, seed=2)))
    for other in results[1:]:
        assert all(same_bits(a, b) for a, b in zip(results[0], other))


@pytest.mark.skipif(not {"avx2", "avx512"} <= set(runtime.available_isas()), reason="needs AVX2 and AVX-512")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_avx2_and_avx512_agree(case: Case) -> None:
    ops, before, results = resolve_ops("cpu", strict=True), runtime.isa(), []
    for isa in ("avx2", "avx512"):
        runtime.set_isa(isa)
        results.append(call(ops, case.op, prepare(ops, case, seed=4)))
    runtime.set_isa(before)
    assert all(same_bits(a, b) for a, b in zip(*results))


def attend(ops: Ops, args: tuple[Any, ...]) -> Tensor:
    return ops.paged_attention(*args)


@pytest.mark.parametrize("window", [0, 1, 40, 600])
@pytest.mark.parametrize("kv", ["float32", "int8"])
@pytest.mark.parametrize("other", [{"order": 9}, {"block_size": 3}, {"block_size": 16}, {"block_size": 64}])
def test_blocks_change_nothing(cpu: Ops, window: int, other: dict[str, int], kv: str) -> None:
    slices = [(1, 700), (30, 30), (6, 550)]
    base = attend(cpu, inputs.attention(7, slices, window=window, kv=kv))
    assert same_bits(attend(cpu, inputs.attention(7, slices, window=window, kv=kv, **other)), base)


def cut(args: tuple[Any, ...], sizes: list[int]) -> list[tuple[Any, ...]]:
    """One slice's rows in consecutive chunks, as successive steps would compute them."""
    q, k, v, table, _, lengths, scale, window = args
    before, calls, at = int(lengths[0]) - q.shape[0], [], 0
    for size in sizes:
        starts = torch.tensor([0, size], dtype=torch.int32)
        length = torch.tensor([before + at + size], dtype=torch.int32)
        calls.append((q[at : at + size], k, v, table, starts, length, scale, window))
        at += size
    assert at == q.shape[0]
    return calls


@pytest.mark.parametrize("kv", ["float32", "int16", "int8"])
@pytest.mark.parametrize("window", [0, 3, 33, 520])
@pytest.mark.parametrize("heads", [(9, 3), (4, 1), (2, 2)])
def test_chunked_equals_whole(cpu: Ops, window: int, heads: tuple[int, int], kv: str) -> None:
    args = inputs.attention(8, [(100, 1100)], heads=heads, d=32, window=window, kv=kv)
    whole = attend(cpu, args)
    for sizes in ([1] * 100, [37, 1, 62], [64, 36]):
        assert same_bits(torch.cat([attend(cpu, chunk) for chunk in cut(args, sizes)]), whole)


def test_a_slice_alone_equals_the_slice_among_others(cpu: Ops) -> None:
    slices = [(1, 1030), (17, 40), (0, 5), (5, 600), (1, 1)]
    q, k, v, table, starts, lengths, scale, window = inputs.attention(9, slices)
    whole = attend(cpu, (q, k, v, table, starts, lengths, scale, window))
    for s, (rows, _) in enumerate(slices):
        mine = slice(int(starts[s]), int(starts[s + 1]))
        one = torch.tensor([0, rows], dtype=torch.int32)
        alone = attend(cpu, (q[mine], k, v, table[s : s + 1], one, lengths[s : s + 1], scale, window))
        assert same_bits(alone, whole[mine])


@pytest.mark.parametrize("rows", [2, 10])
@pytest.mark.parametrize("kv", ["float32", "bfloat16"])
def test_later_positions_contribute_nothing(cpu: Ops, rows: int, kv: str) -> None:
    q, k, v, table, starts, lengths, scale, window = inputs.attention(3, [(rows, 50)], block_size=16, kv=kv)
    clean = attend(cpu, (q, k, v, table, starts, lengths, scale, window))
    last = int(table[0, 49 // 16])
    k[last, :, 49 % 16], v[last, :, 49 % 16] = torch.nan, torch.inf
    assert same_bits(attend(cpu, (q, k, v, table, starts, lengths, scale, window))[:-1], clean[:-1])


@pytest.mark.parametrize("rows", [2, 10])
@pytest.mark.parametrize("kv", ["int16", "int8"])
def test_later_codes_contribute_nothing(cpu: Ops, rows: int, kv: str) -> None:
    q, k, v, table, starts, lengths, scale, window = inputs.attention(3, [(rows, 50)], block_size=16, kv=kv)
    clean = attend(cpu, (q, k, v, table, starts, lengths, scale, window))
    last = (int(table[0, 49 // 16]), slice(None), 49 % 16)
    k[last] = v[last] = -1  # the scale's bits, too: a NaN
    out = attend(cpu, (q, k, v, table, starts, lengths, scale, window))
    assert same_bits(out[:-1], clean[:-1])
    assert out[-1].isnan().all()


def test_padding_rows_are_zero(cpu: Ops) -> None:
    args = inputs.attention(3, [(2, 20)])
    q = torch.cat((args[0], torch.full_like(args[0], torch.nan)))
    out = attend(cpu, (q, *args[1:]))
    assert same_bits(out[:2], attend(cpu, args))
    assert same_bits(out[2:], torch.zeros_like(out[2:]))

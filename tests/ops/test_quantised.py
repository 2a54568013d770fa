"""Blocks as stored: the written chain of operations to the bit, a bound on the cost of rounding, and edges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from headrace.contract.errors import ModelError
from headrace.kernels import case_inputs as inputs
from headrace.kernels.cpu import runtime
from headrace.kernels.ops import Ops
from headrace.kernels.quant import KINDS, QuantRows, row_bytes
from headrace.kernels.resolve import resolve_ops

from .bits import same_bits

SYMMETRIC = ("Q4_0", "Q5_0", "Q8_0", "Q6_K")


def fused(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """a * b + c with one rounding to float32: the product is exact in float64, and so, nearly always, is the sum."""
    return (a.double() * b.double() + c.double()).float()


def quantise(x: Tensor) -> tuple[Tensor, Tensor]:
    """Codes (T, G, 32) int64 and scales (T, G) of rows x (T, K)."""
    groups = x.view(len(x), -1, 32)
    largest = groups.abs().amax(-1, keepdim=True)
    codes = (groups * (127 / largest)).round().nan_to_num(0.0)  # a group of zeros divides by zero
    return codes.long(), (largest / 127).squeeze(-1)


def stored_numbers(rows: QuantRows) -> tuple[Tensor, Tensor, Tensor]:
    """Integers (N, K), scales (N, K) and minima (N, K) with value = scale * integer + minimum, out of the blocks.

    Found by dequantising copies in which the other field is zeroed; each is exact in float32.
    """
    fields, _ = inputs.BLOCK_FIELDS[rows.kind]
    blocks = rows.data.reshape(-1, row_bytes(rows.kind, rows.k) * rows.n // blocks_of(rows))
    minima = torch.zeros(rows.n, rows.k)
    products = rows.dequantise()
    if rows.kind not in SYMMETRIC:
        minima = with_halves(rows, blocks, {fields[0]: 0.0}).dequantise()
        products = with_halves(rows, blocks, {fields[1]: 0.0}).dequantise()
    unit = with_halves(rows, blocks, {at: 1.0 if at == fields[0] else 0.0 for at in fields}).dequantise()
    d = torch.from_numpy(blocks[:, fields[0] : fields[0] + 2].copy().view("<f2").astype(np.float32))
    d = d.expand(-1, rows.n * rows.k // len(blocks)).reshape(rows.n, rows.k)
    steps = k_scales(rows, blocks)
    assert torch.equal(products, d * unit)
    return (unit / steps).nan_to_num(0.0).round().long(), d * steps, minima


def blocks_of(rows: QuantRows) -> int:
    return rows.n * rows.k // (256 if rows.kind.endswith("_K") else 32)


def with_halves(rows: QuantRows, blocks: np.ndarray, values: dict[int, float]) -> QuantRows:
    changed = blocks.copy()
    for at, value in values.items():
        changed[:, at : at + 2] = np.array([value], "<f2").view(np.uint8)
    return QuantRows(rows.kind, rows.n, rows.k, changed.reshape(rows.data.shape))


def k_scales(rows: QuantRows, blocks: np.ndarray) -> Tensor:
    """The integer scales inside a block, per value (N, K); ones where the format has none."""
    if not rows.kind.endswith("_K"):
        return torch.ones(rows.n, rows.k)
    if rows.kind == "Q6_K":
        scales = blocks[:, 192:208].view(np.int8).astype(np.float32)
    else:
        packed = blocks[:, 4:16]
        low = packed[:, :4] & 63
        high = packed[:, 8:12] & 15 | packed[:, :4] >> 6 << 4
        scales = np.concatenate((low, high), 1).astype(np.float32)
    return torch.from_numpy(scales).repeat_interleave(256 // scales.shape[1], 1).reshape(rows.n, rows.k)


def emulate(x: Tensor, rows: QuantRows) -> Tensor:
    """The chain that quantised_matmul.h promises, in torch: x (T, K) -> (T, N)."""
    integers, scales, minima = stored_numbers(rows)
    codes, x_scales = quantise(x)
    width = 16 if rows.kind == "Q6_K" else 32
    y = torch.zeros(len(x), rows.n)
    flat = codes.view(len(x), -1)
    for at in range(0, rows.k, width):
        x_scale = x_scales[:, at // 32, None]  # (T, 1)
        dot = flat[:, at : at + width] @ integers[:, at : at + width].T
        y = fused(dot.float(), scales[:, at] * x_scale, y)
        if rows.kind not in SYMMETRIC:
            total = flat[:, at : at + width].sum(1, keepdim=True).float()
            y = fused(minima[:, at].expand_as(y), x_scale * total, y)
    return y


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("t", [1, 7, 30])
def test_bits_are_those_of_the_written_chain(kind: str, t: int, cpu: Ops) -> None:
    x, [rows], _ = inputs.quantised_linear(11, (kind,), t, 512, 53)
    assert same_bits(cpu.linear(x, cpu.pack_weight(rows), None), emulate(x, rows))


@pytest.mark.parametrize("kind", KINDS)
def test_the_error_is_that_of_rounding_activations(kind: str, cpu: Ops, reference: Ops) -> None:
    """|y - exact| <= sum over groups of half a step of the activations times the sum of |w|, plus float rounding."""
    x, [rows], _ = inputs.quantised_linear(12, (kind,), 20, 512, 40)
    w = rows.dequantise().double()
    exact = x.double() @ w.T
    half_steps = quantise(x)[1].double() / 2 * (1 + 1e-6)
    bound = half_steps @ w.abs().view(len(w), -1, 32).sum(-1).T + 1e-5 * (x.double().abs() @ w.abs().T)
    error = (cpu.linear(x, cpu.pack_weight(rows), None).double() - exact).abs()
    assert bool((error <= bound).all())
    assert float(error.max()) > 0
    torch.testing.assert_close(
        reference.linear(x, reference.pack_weight(rows), None).double(), exact, atol=1e-4, rtol=1e-4
    )


@pytest.mark.parametrize("kind", KINDS)
def test_every_instruction_set_gives_the_same_bits(kind: str) -> None:
    """Scalar too, unlike for floats: the integers are exact and the rest is fused on all of them."""
    ops, before, results = resolve_ops("cpu", strict=True), runtime.isa(), []
    x, [rows], bias = inputs.quantised_linear(13, (kind,), 29, 256, 77, bias=True)
    packed = ops.pack_weight(rows)
    for isa in runtime.available_isas():
        runtime.set_isa(isa)
        results.append(ops.linear(x, packed, bias))
    runtime.set_isa(before)
    assert all(same_bits(results[0], other) for other in results)


@pytest.mark.parametrize("kind", KINDS)
def test_every_number_of_rows_gives_the_same_bits(kind: str, cpu: Ops) -> None:
    x, [rows], _ = inputs.quantised_linear(14, (kind,), 64, 256, 40)
    packed = cpu.pack_weight(rows)
    singles = torch.cat([cpu.linear(x[m : m + 1], packed, None) for m in range(64)])
    for count in range(2, 65):
        assert same_bits(cpu.linear(x[:count], packed, None), singles[:count])


def test_extreme_codes_do_not_saturate(cpu: Ops) -> None:
    """Largest codes of one sign against largest activations: sums of pairs exceed 16 bits."""
    data = np.zeros((16, row_bytes("Q8_0", 64)), np.uint8)
    data.reshape(-1, 34)[:, :2] = np.array([1.0], "<f2").view(np.uint8)
    for code in (0x80, 0x7F):  # -128 and 127
        data.reshape(-1, 34)[:, 2:] = code
        packed = cpu.pack_weight(QuantRows("Q8_0", 16, 64, data.copy()))
        value = code - 256 if code > 127 else code
        for sign in (1.0, -1.0):
            assert cpu.linear(torch.full((1, 64), sign * 127.0), packed, None).tolist() == [
                [sign * 127 * 64 * value] * 16
            ]


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q6_K"])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_row_that_is_not_finite_comes_out_as_nan(kind: str, bad: float, cpu: Ops) -> None:
    x, [rows], _ = inputs.quantised_linear(15, (kind,), 5, 256, 20)
    packed = cpu.pack_weight(rows)
    clean = cpu.linear(x, packed, None)
    x[2, 77] = bad
    out = cpu.linear(x, packed, None)
    assert bool(out[2].isnan().all())
    assert same_bits(out[[0, 1, 3, 4]], clean[[0, 1, 3, 4]])


@pytest.mark.parametrize("size", [0.0, 1e-38, 1e-31, 1e-44])
def test_next_to_nothing_counts_as_zero(size: float, cpu: Ops) -> None:
    _, [rows], bias = inputs.quantised_linear(16, ("Q4_1",), 1, 64, 20, bias=True)
    assert torch.equal(cpu.linear(torch.full((2, 64), size), cpu.pack_weight(rows), bias), bias.expand(2, -1))


def test_large_activations_do_not_overflow(cpu: Ops, reference: Ops) -> None:
    x, [rows], _ = inputs.quantised_linear(17, ("Q8_0",), 3, 64, 20)
    big, exact = (
        cpu.linear(x * 1e30, cpu.pack_weight(rows), None),
        reference.linear(x, reference.pack_weight(rows), None),
    )
    torch.testing.assert_close(big / 1e30, exact, atol=0.2, rtol=0)


def test_parts_of_a_weight_keep_their_own_storage(cpu: Ops) -> None:
    """A weight of several parts gives what its parts give, whatever their formats, sizes and order."""
    kinds = ("Q4_K", "F32", "Q8_0", "Q5_1", "Q6_K")
    x, parts, _ = inputs.quantised_linear(18, kinds, 33, 256, 19)
    together = cpu.linear(x, cpu.pack_weight(parts), None)
    alone = [cpu.linear(x, cpu.pack_weight(part), None) for part in parts]
    assert same_bits(together, torch.cat(alone, 1))
    ids = torch.arange(19 * len(kinds), dtype=torch.int32)
    values = [part.dequantise() if isinstance(part, QuantRows) else part for part in parts]
    assert same_bits(cpu.embedding(ids, cpu.pack_weight(parts)), torch.cat(values))


@pytest.mark.parametrize("kind", KINDS)
def test_embedding_gives_the_values_stored(kind: str, cpu: Ops) -> None:
    rows = inputs.blocks(19, kind, 50, 512)
    ids = torch.arange(50, dtype=torch.int32)
    assert same_bits(cpu.embedding(ids, cpu.pack_weight(rows)), rows.dequantise())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bit_floats_give_the_bits_of_their_float32_copy(dtype: torch.dtype, cpu: Ops) -> None:
    x, w, bias = inputs.linear(20, 30, 53, 90, bias=True)
    stored = w.to(dtype)
    packed, wide = cpu.pack_weight(stored), cpu.pack_weight(stored.float())
    assert same_bits(cpu.linear(x, packed, bias), cpu.linear(x, wide, bias))
    ids = torch.arange(90, dtype=torch.int32)
    assert same_bits(cpu.embedding(ids, packed), stored.float())


def test_storage_is_halved_only_where_nothing_is_lost(cpu: Ops) -> None:
    w = inputs.linear(21, 1, 64, 64)[1]
    full = cpu.pack_weight(w).nbytes
    assert cpu.pack_weight(w.bfloat16()).nbytes == full // 2
    assert cpu.pack_weight(w.bfloat16().half()).nbytes == full // 2
    assert cpu.pack_weight(w.half()).nbytes == full
    assert cpu.pack_weight(w.bfloat16().float()).nbytes == full


def test_four_bits_stay_four_bits(cpu: Ops) -> None:
    for kind in ("Q4_0", "Q4_1", "Q8_0"):
        rows = inputs.blocks(22, kind, 64, 512)
        assert cpu.pack_weight(rows).nbytes == rows.data.nbytes


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_wrong_weights_are_named(backend: str) -> None:
    ops = resolve_ops(backend)
    with pytest.raises(ModelError, match="Q8_0 blocks: hold 32 values each, which 48"):
        QuantRows("Q8_0", 1, 48, np.zeros((1, 51), np.uint8))
    with pytest.raises(ModelError, match="Q2_K blocks: are not known"):
        QuantRows("Q2_K", 1, 256, np.zeros((1, 84), np.uint8))
    with pytest.raises(ModelError, match=r"expected uint8 \(2, 34\)"):
        QuantRows("Q8_0", 2, 32, np.zeros((2, 33), np.uint8))
    with pytest.raises(ModelError, match="one number of columns"):
        ops.pack_weight([torch.zeros(2, 32), torch.zeros(2, 64)])
    with pytest.raises(ModelError, match="no parts"):
        ops.pack_weight([])


def test_the_binding_checks_blocks() -> None:
    from headrace._kernels import Weight

    weight, none = Weight(64), np.zeros((0, 68), np.uint8)
    bad: list[tuple[Any, str]] = [
        (("Q9_9", np.zeros((1, 68), np.uint8)), "'Q9_9' is unknown"),
        (("Q8_0", np.zeros((1, 67), np.uint8)), "rows: dimension 1 is 67, expected 68"),
        (("Q4_K", np.zeros((1, 36), np.uint8)), "64 columns are no whole Q4_K blocks of 256"),
        (("Q8_0", none), "at least one row"),
    ]
    for args, match in bad:
        with pytest.raises(ValueError, match=match):
            weight.append_blocks(*args)
    with pytest.raises(ValueError, match="at least one column"):
        Weight(0)
    assert weight.n == 0

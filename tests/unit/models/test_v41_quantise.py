"""The family's number formats: worked values, exactness, and each rounding rule by itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headrace.kernels.record_formats import E2M1, unpack_e2m1
from headrace.models.deepseek_v41 import quantise as q
from headrace.models.deepseek_v41.config_parts import Yarn
from headrace.models.deepseek_v41.tensor_ops import (
    inverse_frequencies,
    rotary_table,
    rotate_tail,
    row_sum,
    sigmoid,
    silu,
    softplus,
)


def decoded(codes: torch.Tensor) -> torch.Tensor:
    """Values of single codes: the low halves of bytes."""
    return unpack_e2m1(codes.unsqueeze(-1))[..., 0]


@given(st.integers(-120, 120), st.floats(1.0, 1.999))
def test_a_power_of_two_is_never_below_and_never_twice_too_large(exponent: int, mantissa: float) -> None:
    x = torch.tensor([mantissa * 2.0**exponent], dtype=torch.float32)
    power = q.power_of_two(q.power_of_two_above(x))
    assert x <= power < 2 * x


@pytest.mark.parametrize(("x", "byte"), [(1.0, 127), (1.0000001, 128), (0.5, 126), (448 / 448, 127), (3.0, 129)])
def test_exponent_bytes(x: float, byte: int) -> None:
    assert q.power_of_two_above(torch.tensor([x])).item() == byte


def test_the_ends_of_the_scale_bytes() -> None:
    assert q.power_of_two(torch.tensor([0, 1, 254], dtype=torch.uint8)).tolist() == [2.0**-127, 2.0**-126, 2.0**127]


TIES = {0.25: 0.0, 0.75: 1.0, 1.25: 1.0, 1.75: 2.0, 2.5: 2.0, 3.5: 4.0, 5.0: 4.0}


@pytest.mark.parametrize(("x", "rounded"), TIES.items())
def test_e2m1_ties_go_to_the_even_code(x: float, rounded: float) -> None:
    both = torch.tensor([x, -x])
    assert decoded(q.encode_e2m1(both)).abs().tolist() == [rounded, rounded]
    step = torch.tensor([x * (1 - 1e-6), x * (1 + 1e-6)])
    below, above = decoded(q.encode_e2m1(step)).tolist()
    assert below < above  # the tie is where it should be


def test_e2m1_values_are_fixed_points_and_large_ones_saturate() -> None:
    values = torch.tensor([*E2M1, *(-v for v in E2M1), 7.0, -100.0])
    assert decoded(q.encode_e2m1(values)).tolist() == [*E2M1, *(-v for v in E2M1), 6.0, -6.0]


def test_nibbles_hold_the_even_column_low() -> None:
    codes = torch.tensor([[1, 2, 15, 0]], dtype=torch.uint8)
    packed = q.pack_nibbles(codes)
    assert packed.tolist() == [[0x21, 0x0F]]
    assert torch.equal(unpack_e2m1(packed), decoded(codes))


@pytest.mark.parametrize("scale", [1e-3, 1.0, 300.0])
def test_mxfp8_records(scale: float) -> None:
    """528 bytes for 512 values; a second rounding changes nothing; the error is half a step of the scaled value."""
    x = torch.randn(7, 512, generator=torch.Generator().manual_seed(1)) * scale
    record = q.pack_mxfp8(x)
    assert record.shape == (7, 528)
    once = q.unpack_mxfp8(record)
    assert torch.equal(q.round_mxfp8(once), once)
    assert torch.equal(once.to(torch.bfloat16).float(), once)
    largest = x.unflatten(1, (-1, 32)).abs().amax(2, keepdim=True)
    assert ((once - x).unflatten(1, (-1, 32)).abs() <= largest * 2.0**-4).all()


def test_mxfp8_of_a_group_whose_largest_is_exactly_448_steps() -> None:
    x = torch.zeros(1, 32)
    x[0, 0], x[0, 1] = 448.0, 449.0
    assert q.pack_mxfp8(x)[0, 32].item() == 128  # 449 asks for the next power: scale 2
    x[0, 1] = 0.0
    assert q.pack_mxfp8(x)[0, 32].item() == 127
    assert q.round_mxfp8(x)[0, 0].item() == 448.0


def test_mxfp4_pairs() -> None:
    x = torch.randn(5, 128, generator=torch.Generator().manual_seed(2))
    codes, scales = q.pack_mxfp4(x)
    assert (codes.shape, scales.shape) == ((5, 64), (5, 4))
    once = q.unpack_mxfp4(codes, scales)
    assert torch.equal(q.unpack_mxfp4(*q.pack_mxfp4(once)), once)


def test_kv4_records() -> None:
    """288 bytes for 512 values, with an e4m3 scale, rounded to nearest, of the largest sixth."""
    x = torch.randn(6, 512, generator=torch.Generator().manual_seed(3))
    record = q.pack_kv4(x)
    assert record.shape == (6, 288)
    largest = x.unflatten(1, (-1, 16)).abs().amax(2)
    assert torch.equal(q.decode_e4m3(record[:, 256:].contiguous()), (largest / 6).to(torch.float8_e4m3fn).float())
    back = q.unpack_kv4(record)
    # At most one step of e2m1 between 4 and 6, halved, plus what saturates when the scale was rounded down.
    assert ((back - x).unflatten(1, (-1, 16)).abs() <= largest.unsqueeze(2) * 0.19).all()
    assert torch.equal(back.to(torch.bfloat16).float(), back)


def test_zeros_stay_zeros() -> None:
    zeros = torch.zeros(2, 64)
    assert q.round_mxfp8(zeros).eq(0).all()
    assert q.unpack_mxfp4(*q.pack_mxfp4(zeros)).eq(0).all()
    assert q.unpack_kv4(q.pack_kv4(zeros)).eq(0).all()


def test_weights_take_the_scale_of_their_own_tile() -> None:
    """Every tile another scale, a ragged last tile: a mis-indexed one shows."""
    codes = torch.full((40, 70), 0x38, dtype=torch.uint8)  # e4m3 1.0
    scale = torch.arange(120, 126, dtype=torch.uint8).view(2, 3)
    weights = q.fp8_tiles(codes, scale)
    assert weights[31, 63] == 2.0 ** (121 - 127)
    assert weights[32, 31] == 2.0 ** (123 - 127)
    assert weights[39, 69] == 2.0 ** (125 - 127)


def test_expert_rows_take_the_scale_of_their_own_columns() -> None:
    packed = torch.full((2, 32), 0x2A, dtype=torch.uint8)  # even column -1.0, odd column 1.0
    scale = torch.tensor([[127, 128], [129, 130]], dtype=torch.uint8)
    weights = q.fp4_rows(packed, scale)
    assert weights[0, :2].tolist() == [-1.0, 1.0]
    assert [weights[0, 32].item(), weights[1, 1].item(), weights[1, 63].item()] == [-2.0, 4.0, 8.0]


def test_yarn_bounds_of_the_released_settings() -> None:
    """Ramp from pair 15 to pair 25: below, frequencies are kept; above, divided by the factor."""
    yarn = Yarn(16.0, 32.0, 1.0, 65536)
    plain, stretched = inverse_frequencies(160000, 64, None), inverse_frequencies(160000, 64, yarn)
    ratio = plain / stretched
    assert ratio[:16].eq(1).all()
    assert torch.allclose(ratio[25:], torch.tensor(16.0))
    assert (ratio[16:25].diff() > 0).all()


def test_rotation_turns_interleaved_pairs_of_the_tail_and_back() -> None:
    table = rotary_table(inverse_frequencies(10000.0, 4, None), 8)
    x = torch.tensor([[[5.0, 6.0, 1.0, 0.0, 0.0, 1.0]]])
    turned = rotate_tail(x, table, torch.tensor([3]))
    cos, sin = torch.cos(torch.tensor([3.0, 0.03])), torch.sin(torch.tensor([3.0, 0.03]))
    assert torch.allclose(turned[0, 0], torch.stack((x[0, 0, 0], x[0, 0, 1], cos[0], sin[0], -sin[1], cos[1])))
    assert torch.allclose(rotate_tail(turned, table, torch.tensor([3]), back=True), x, atol=1e-6)


@pytest.mark.parametrize("function", [torch.exp, torch.log1p, torch.sqrt, sigmoid, softplus, silu])
def test_smooth_functions_give_an_element_the_same_bits_wherever_it_lies(function: Callable[..., torch.Tensor]) -> None:
    """At every offset and length: what makes a row's bits independent of the batch. Torch's own sigmoid would fail."""
    x = torch.rand(600, generator=torch.Generator().manual_seed(8)) * 9
    whole = function(x)
    for length in (1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 33, 100):
        for at in range(0, 64):
            assert torch.equal(function(x[at : at + length].clone()), whole[at : at + length])
    assert torch.equal(function(x.repeat(50)), whole.repeat(50))


@given(st.integers(1, 40))
def test_row_sums_do_not_depend_on_the_batch(columns: int) -> None:
    x = torch.randn(9, columns, generator=torch.Generator().manual_seed(columns))
    together = row_sum(x)
    assert torch.allclose(together, x.sum(1), atol=1e-5)
    assert all(torch.equal(row_sum(x[i : i + 1]), together[i : i + 1]) for i in range(9))

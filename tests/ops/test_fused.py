"""Fused products give the bits of the ops they stand for, at once and replayed, whatever the storage of the weight."""

from __future__ import annotations

import pytest
import torch

from headrace.kernels import case_inputs as inputs
from headrace.kernels.capture import Recording, Sizes
from headrace.kernels.ops import Ops, SampleParams

from .bits import same_bits

STORED = [("F32",), ("Q4_1",), ("Q8_0",), ("Q5_0", "F32", "Q6_K")]
ROWS = [0, 1, 13, 100, 200]


@pytest.mark.parametrize("kinds", STORED, ids="+".join)
@pytest.mark.parametrize("t", ROWS)
def test_norm_and_linear(kinds: tuple[str, ...], t: int, cpu: Ops) -> None:
    x, residual, norm, eps, parts, bias = inputs.norm_linear(1, t, 256, 40, kinds, residual=True, bias=True)
    w = cpu.pack_weight(parts)
    normed, total = cpu.add_rms_norm(x, residual, norm, eps)
    y, summed = cpu.norm_linear(x, residual, norm, eps, w, bias)
    assert same_bits(summed, total)
    assert same_bits(y, cpu.linear(normed, w, bias))
    alone, same = cpu.norm_linear(x, None, norm, eps, w, bias)
    assert same is x
    assert same_bits(alone, cpu.linear(cpu.rms_norm(x, norm, eps), w, bias))


@pytest.mark.parametrize("gelu", [False, True])
@pytest.mark.parametrize("kinds", STORED, ids="+".join)
@pytest.mark.parametrize("t", ROWS)
def test_gate_and_linear(kinds: tuple[str, ...], t: int, gelu: bool, cpu: Ops) -> None:
    x, _, parts = inputs.gated_linear(2, t, 256, 40, kinds, gelu)
    w = cpu.pack_weight(parts)
    inner = cpu.gelu_tanh_mul(x) if gelu else cpu.silu_mul(x)
    assert same_bits(cpu.gated_linear(x, gelu, w), cpu.linear(inner, w, None))


def greedy(rows: int) -> SampleParams:
    floats, ids = torch.zeros(rows), torch.zeros(rows, dtype=torch.int32)
    longs = torch.zeros(rows, dtype=torch.int64)
    return SampleParams(floats, ids, floats + 1, floats, longs, longs)


@pytest.mark.parametrize("kinds", STORED, ids="+".join)
@pytest.mark.parametrize("t", ROWS)
def test_argmax_is_what_greedy_sampling_draws(kinds: tuple[str, ...], t: int, cpu: Ops) -> None:
    x, _, norm, eps, parts, _ = inputs.norm_linear(3, t, 256, 530, kinds, residual=False, bias=False)
    if t > 4:
        x[2, 5], x[3] = torch.nan, 0.0  # a row that is spoilt, and one whose logits are all equal
    w = cpu.pack_weight(parts)
    logits, _ = cpu.norm_linear(x, None, norm, eps, w, None)
    ids = cpu.norm_argmax(x, norm, eps, w)
    assert ids.tolist() == cpu.sample(logits, greedy(t)).tolist()
    if t > 4:
        assert ids[2] == -1
        assert ids[3] == 0


@pytest.mark.parametrize("at", [0, 15, 16, 255, 256, 999])
def test_the_lower_of_two_equal_maxima_wins_wherever_they_lie(at: int, cpu: Ops) -> None:
    w = torch.zeros(1000, 32)
    w[at:] = 1.0
    x = torch.ones(3, 32)
    assert cpu.norm_argmax(x, torch.ones(32), 1e-5, cpu.pack_weight(w)).tolist() == [at] * 3


@pytest.mark.parametrize("kinds", STORED, ids="+".join)
def test_a_replay_over_fewer_rows_gives_the_same_bits(kinds: tuple[str, ...], cpu: Ops) -> None:
    x, residual, norm, eps, parts, bias = inputs.norm_linear(4, 30, 256, 512 // len(kinds), kinds, True, True)
    bias = bias.contiguous()
    w = cpu.pack_weight(parts)
    if w.n % 2:
        pytest.skip("an odd width cannot be gated")
    down = cpu.pack_weight(inputs.stored(5, "Q8_0", 64, w.n // 2)) if w.n // 2 % 32 == 0 else None
    rows = torch.arange(7, dtype=torch.int32)
    recording = Recording(30, 7, [rows])
    with recording.capturing():
        y, total = cpu.norm_linear(x, residual, norm, eps, w, bias)
        gated = y if down is None else cpu.gated_linear(y, False, down)
        ids = cpu.norm_argmax(cpu.gather_rows(total, rows), norm, eps, w)
    recording.run(Sizes(9, 5, 0, 0), [rows])
    expected, summed = cpu.norm_linear(x[:9], residual[:9], norm, eps, w, bias)
    assert same_bits(total[:9], summed)
    assert same_bits(y[:9], expected)
    if down is not None:
        assert same_bits(gated[:9], cpu.gated_linear(expected, False, down))
    assert ids[:5].tolist() == cpu.norm_argmax(summed[:5], norm, eps, w).tolist()


def test_sizes_are_checked(cpu: Ops) -> None:
    x, residual, norm, eps, parts, _ = inputs.norm_linear(6, 3, 64, 20, ("Q8_0",), True, False)
    w = cpu.pack_weight(parts)
    with pytest.raises(ValueError, match="residual: dimension 0 is 2, expected 3"):
        cpu.norm_linear(x, residual[:2], norm, eps, w, None)
    with pytest.raises(ValueError, match="norm: dimension 0 is 63, expected 64"):
        cpu.norm_linear(x, None, norm[:63], eps, w, None)
    with pytest.raises(ValueError, match="x: dimension 1 is 64, expected 128"):
        cpu.gated_linear(x, False, w)
    with pytest.raises(ValueError, match="bias: dimension 0 is 19, expected 20"):
        cpu.norm_linear(x, None, norm, eps, w, torch.zeros(19))

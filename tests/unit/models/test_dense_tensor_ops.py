"""Rotary tables and head splitting against numbers worked out by hand or by another formula."""

from __future__ import annotations

import math

import torch
from dense_oracle import llama3

from headrace.models.dense.config_rope import RopeConfig
from headrace.models.dense.tensor_ops import inverse_frequencies, rope_table


def test_plain_frequencies() -> None:
    expected = torch.tensor([1.0, 0.1, 0.01, 0.001])
    torch.testing.assert_close(inverse_frequencies(RopeConfig(10000.0), 8), expected)
    torch.testing.assert_close(inverse_frequencies(RopeConfig(1e4, "linear", factor=4.0), 8), expected / 4)
    factors = RopeConfig(1e4, "frequency_factors", factors=(1.0, 1.0, 2.0, 8.0))
    torch.testing.assert_close(inverse_frequencies(factors, 8), torch.tensor([1.0, 0.1, 0.005, 0.000125]))


def test_llama3_rule() -> None:
    """Llama 3.1's numbers: the piecewise rule as published, and its two ends."""
    rope = RopeConfig(500000.0, "llama3", 8.0, 1.0, 4.0, 8192)
    ours = inverse_frequencies(rope, 128)
    plain = inverse_frequencies(RopeConfig(500000.0), 128)
    published = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    published["original_max_position_embeddings"] = 8192
    torch.testing.assert_close(ours, torch.tensor([llama3(float(f), published) for f in plain]))
    assert torch.equal(ours[:28], plain[:28])
    assert torch.allclose(ours[-20:], plain[-20:] / 8)
    blended = (ours < plain * 0.999) & (ours > plain / 8 * 1.001)
    assert 3 <= int(blended.sum()) <= 12


def test_table_holds_cosines_then_sines() -> None:
    table = rope_table(RopeConfig(100.0), 4, 16)
    assert table.shape == (16, 2, 2)
    assert table[0].tolist() == [[1.0, 1.0], [0.0, 0.0]]
    expected = [[math.cos(15), math.cos(1.5)], [math.sin(15), math.sin(1.5)]]
    torch.testing.assert_close(table[15], torch.tensor(expected))

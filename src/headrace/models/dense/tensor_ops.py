"""Pure functions on tensors that belong to the dense family and to no backend. No parameters, no state."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .config_rope import RopeConfig


def rope_table(rope: RopeConfig, head_dim: int, max_positions: int) -> Tensor:
    """Cosines and sines, (max_positions, 2, head_dim / 2).

    The angle is position * frequency, multiplied in float32: the models were trained with those roundings.
    """
    positions = torch.arange(max_positions, dtype=torch.float32)
    angles = torch.outer(positions, inverse_frequencies(rope, head_dim))
    return torch.stack((angles.cos(), angles.sin()), dim=1)


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> Tensor:
    """Radians per position of each pair, (head_dim / 2,): theta^(-2i / head_dim), then the scaling rule."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    frequencies = 1.0 / rope.theta**exponents
    if rope.kind == "linear":
        return frequencies / rope.factor
    if rope.kind == "llama3":
        return _llama3(rope, frequencies)
    if rope.kind == "frequency_factors":
        return frequencies / torch.tensor(rope.factors)
    return frequencies


def _llama3(rope: RopeConfig, frequencies: Tensor) -> Tensor:
    """Llama 3.1's rule: long wavelengths are stretched by ``factor``, short ones kept, blended between.

    With turns = original_positions / wavelength, the kept share runs from 0 at low_freq_factor turns to 1 at
    high_freq_factor turns.
    """
    turns = rope.original_positions * frequencies / (2 * math.pi)
    kept = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    kept = kept.clamp(0.0, 1.0)
    return frequencies * kept + frequencies / rope.factor * (1.0 - kept)

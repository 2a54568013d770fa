"""Synthetic weights from a configuration alone: for tests and for measuring a shape, never for quality.

Each tensor is a function of (seed, name, shape), so the order of reading does not matter. Matrices have
variance 1/fan_in and norm weights lie near one, so that activations neither vanish nor overflow.
"""

from __future__ import annotations

from hashlib import blake2b
from math import prod
from typing import Any

import torch
from torch import Tensor

from headrace.contract.errors import ModelError

from .checkpoint import Shapes

NORM_SPREAD = 0.05
BIAS_SPREAD = 0.02


class DummyCheckpoint:
    """A checkpoint without a file. It holds no tensor until ``expect`` has said which ones there are."""

    def __init__(self, source: str, config: dict[str, Any], seed: int) -> None:
        self.source = source
        self.config = config
        self.seed = seed
        self._shapes: dict[str, tuple[int, ...]] = {}

    def names(self) -> tuple[str, ...]:
        return tuple(self._shapes)

    def expect(self, shapes: Shapes) -> None:
        self._shapes = dict(shapes)

    def tensor(self, name: str) -> Tensor:
        if name not in self._shapes:
            raise ModelError(f"{self.source}: {name}", "no such dummy tensor; call expect(shapes) first")
        return dummy_tensor(self.seed, name, self._shapes[name])

    def stored(self, name: str) -> Tensor:
        return self.tensor(name)

    def packed_bytes(self, name: str) -> int:
        return prod(self._shapes[name]) * torch.float32.itemsize


def dummy_tensor(seed: int, name: str, shape: tuple[int, ...]) -> Tensor:
    """A float32 tensor of ``shape``, the same for the same (seed, name, shape)."""
    digest = blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
    noise = torch.randn(shape, generator=generator)
    if len(shape) > 1:
        return noise.mul_(shape[-1] ** -0.5)
    return noise.mul_(BIAS_SPREAD) if name.endswith(".bias") else noise.mul_(NORM_SPREAD).add_(1.0)

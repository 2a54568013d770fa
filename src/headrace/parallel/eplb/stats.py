"""Token counts per expert over a window of steps, and when to place anew: by interval, never by how skewed they look
(a skew threshold fires just when load is highest, and ranks could disagree).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.contract.errors import ConfigError

from .placement import Ints


@dataclass(frozen=True, slots=True)
class RebalanceConfig:
    """``spares_per_rank``: spare slots a rank starts with; ``window``: steps that count; ``interval``: steps between
    placements."""

    spares_per_rank: int
    window: int
    interval: int


PREFILL = RebalanceConfig(spares_per_rank=4, window=100, interval=1_000)
DECODE = RebalanceConfig(spares_per_rank=1, window=1_000, interval=10_000)


class ExpertStats:
    """This rank's counts; the placement is computed from the sum over ranks, which the caller reduces."""

    def __init__(self, num_layers: int, num_experts: int, config: RebalanceConfig) -> None:
        if min(num_layers, num_experts, config.window, config.interval) < 1:
            raise ConfigError("experts", "layers, experts, window and interval must be positive")
        self._counts: Ints = np.zeros((config.window, num_layers, num_experts), dtype=np.int64)
        self._config = config
        self._num_steps = 0

    def add(self, counts: NDArray[np.integer]) -> None:
        """Counts of one step, (layers, experts). Every rank calls it for every step it runs, empty ones too."""
        self._counts[self._num_steps % self._config.window] = counts
        self._num_steps += 1

    @property
    def due(self) -> bool:
        """Now is the time to place anew: the same step on every rank."""
        return self._num_steps > 0 and self._num_steps % self._config.interval == 0

    def history(self, num_windows: int) -> Ints:
        """(num_windows, layers, experts): the steps that count, oldest first, added up in equal parts."""
        held = min(self._num_steps, self._config.window)
        start = self._num_steps % self._config.window if held == self._config.window else 0
        ordered = np.roll(self._counts, -start, axis=0)[:held]
        parts = np.array_split(ordered, num_windows)
        return np.stack([part.sum(axis=0) for part in parts])

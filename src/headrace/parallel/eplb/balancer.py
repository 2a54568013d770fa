"""When experts are placed anew, and where: the statistics of all ranks in, one layer's change at a time out.

All ranks ask the same questions at the same steps. A placement is computed by rank 0 alone and handed to the others,
so that no rounding of another machine can split the group. At most one layer changes between two steps: what requests
wait for is one layer's weights, however many layers there are. Moves no weights; see the model for that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ..exchange import Exchange
from .placement import ExpertPlacement, Floats, Ints, from_physical, num_spares, place, summed_maximum
from .shuffle import Move, keep_slots, moves
from .stats import ExpertStats, RebalanceConfig

PARTS = 4  # of the window that history keeps apart
LEAST_GAIN = 0.01  # of the slowest ranks' load: less is not worth moving weights
BALANCE_STEPS = 128  # steps whose balance is averaged into one figure


@dataclass(frozen=True, slots=True)
class ExpertShare:
    """Which experts a rank of ``size`` begins with: every expert once, then the first ones again, rank by rank.

    ``spares``: slots beyond one per expert at least; more where slots would not divide by the ranks.
    """

    rank: int
    size: int
    spares: int

    def placement(self, num_experts: int) -> ExpertPlacement:
        """Where everything begins. Raises ConfigError."""
        num_slots = num_experts + num_spares(num_experts, self.size, self.spares)
        return from_physical(np.arange(num_slots, dtype=np.int64) % num_experts, num_experts, self.size)

    def held(self, num_experts: int) -> list[int]:
        """The experts of this rank's slots, in the order of slots."""
        placement = self.placement(num_experts)
        first = self.rank * placement.slots_per_rank
        experts: list[int] = placement.physical_to_logical[first : first + placement.slots_per_rank].tolist()
        return experts


@dataclass(frozen=True, slots=True)
class Change:
    """One layer's new placement, and what brings its slots from the old one to it."""

    layer: int
    placement: ExpertPlacement
    moves: list[Move]


class Balancer:
    """One rank's part. Without a configuration everything stays where it began, and only the balance is measured."""

    def __init__(
        self,
        exchange: Exchange,
        first: Sequence[ExpertPlacement],
        num_experts: int,
        config: RebalanceConfig | None,
    ) -> None:
        """``first``: each layer's placement; ``config`` None: it stays."""
        self._exchange, self._num_experts = exchange, num_experts
        self.placements = list(first)
        self._stats = None if config is None else ExpertStats(len(first), num_experts, config)
        self._history: Floats = np.zeros((0, 0, 0))
        self._waiting: deque[int] = deque()
        self._rows: list[int] = []
        self.balance = 0.0

    def count(self, counts: NDArray[np.integer], rows: int) -> None:
        """A step is over: the tokens of this rank by (layer, expert), and the rows this rank computed for all."""
        if self._stats is not None:
            self._stats.add(counts)
        self._rows.append(rows)
        if len(self._rows) == BALANCE_STEPS:
            self.balance = self._balance()
            self._rows = []

    def _balance(self) -> float:
        """Slowest over mean rank, the mean over the steps that had any rows."""
        own = torch.zeros(BALANCE_STEPS, self._exchange.size, dtype=torch.int64)
        own[:, self._exchange.rank] = torch.tensor(self._rows)
        ranks = self._exchange.total(own).numpy()
        mean = ranks.mean(axis=1)
        busy = mean > 0
        return float((ranks.max(axis=1)[busy] / mean[busy]).mean()) if busy.any() else 0.0

    def next_change(self) -> Change | None:
        """Before a step: what is to be moved now, if anything. Raises GroupBroken.

        A round that is not over when the next is due goes on: else the last of many layers never had their turn.
        """
        if self._stats is not None and self._stats.due and not self._waiting:
            summed = self._exchange.total(torch.from_numpy(self._stats.history(PARTS)))
            self._history = summed.numpy().astype(np.float64)
            self._waiting = deque(range(len(self.placements)))
        if not self._waiting:
            return None
        layer = self._waiting.popleft()
        old, new = self.placements[layer], self._agreed(layer)
        self.placements[layer] = new
        planned = moves(old, new)
        return Change(layer, new, planned) if planned else None

    def _agreed(self, layer: int) -> ExpertPlacement:
        old = self.placements[layer]
        slots = np.zeros_like(old.physical_to_logical)
        if self._exchange.rank == 0:
            slots = self._wanted(old, self._history[:, layer]).physical_to_logical
        agreed: Ints = self._exchange.total(torch.from_numpy(slots)).numpy()
        return from_physical(agreed, self._num_experts, old.num_ranks)

    @staticmethod
    def _wanted(old: ExpertPlacement, loads: Floats) -> ExpertPlacement:
        """The policy's placement, or the old one where it would gain next to nothing."""
        new = keep_slots(old, place(loads, len(old.physical_to_logical), old.num_ranks))
        return new if summed_maximum(new, loads) < (1 - LEAST_GAIN) * summed_maximum(old, loads) else old

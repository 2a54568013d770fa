"""Matrices cut by rows over ranks, and their results put together again.

Every rank computes some of the outputs, each from the whole input: an output is one rank's sum over all columns, in the
kernel's own order, never a sum of sums. So the bits are those of one rank. What travels are activations, gathered in
the order of ranks. Knows no model.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headrace.contract.errors import ConfigError

from .exchange import Exchange


@dataclass(frozen=True, slots=True)
class TensorShare:
    """A rank's part of every matrix: an equal run of rows."""

    rank: int
    size: int

    def count(self, num_rows: int, what: str) -> int:
        """Rows of a rank. Raises ConfigError where they do not divide."""
        if num_rows % self.size:
            raise ConfigError("tensor_parallel_size", f"{self.size} ranks cannot share {num_rows} {what} evenly")
        return num_rows // self.size

    def rows(self, num_rows: int) -> range:
        """This rank's rows."""
        count = num_rows // self.size
        return range(self.rank * count, (self.rank + 1) * count)


def gathered(exchange: Exchange, part: Tensor, runs: int = 1) -> Tensor:
    """``part`` (T, n) of every rank -> (T, size * n), the same on each. ``runs``: equal runs of columns that are put
    together each for itself (a gate's and an up projection's, say). Raises GroupBroken."""
    parts = exchange.rows([part] * exchange.size, expected=[len(part)] * exchange.size)
    columns = part.shape[1] // runs
    return torch.cat([one.view(len(part), runs, columns) for one in parts], dim=2).flatten(1)

"""Engram's numbers: table sizes, hash multipliers, and the rows an n-gram reads. Pure integer functions.

They are facts of trained tables: a different prime or multiplier reads other rows and says nothing. Multipliers follow
numpy's PCG64 ``default_rng`` and its bounded integers, whose stream numpy keeps stable.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .config_parts import EngramConfig

SEED_STEP = 10007  # per layer
IMAGE = -1  # compressed id of an image place holder
NO_ROW = -1


@dataclass(frozen=True, slots=True)
class HashTables:
    """One Engram layer, int64: primes, offsets (tables,), n-gram length major, head minor; multipliers (longest,)."""

    primes: Tensor
    offsets: Tensor
    multipliers: Tensor

    @property
    def num_rows(self) -> int:
        return int(self.primes.sum())


def table_primes(engram: EngramConfig) -> list[list[int]]:
    """Rows of each layer's tables: successive primes from ``first_prime`` on, none used twice in the model."""
    used: set[int] = set()
    layers = []
    for _ in engram.layers:
        primes: list[int] = []
        for _ in range(2, engram.longest + 1):
            fresh = _fresh_primes(engram.first_prime, used)
            primes += [next(fresh) for _ in range(engram.num_heads)]
        layers.append(primes)
    return layers


def _fresh_primes(start: int, used: set[int]) -> Iterator[int]:
    """Primes from ``start`` on that are not in ``used``; each goes into it as it is taken."""
    candidate = start
    while True:
        if candidate not in used and _is_prime(candidate):
            used.add(candidate)
            yield candidate
        candidate += 1


def _is_prime(n: int) -> bool:
    if n < 4:
        return n > 1
    return n % 2 != 0 and all(n % d for d in range(3, int(n**0.5) + 1, 2))


def multipliers(layer: int, longest: int, num_compressed: int) -> Tensor:
    """Odd factors (longest,) int64, small enough that a product with any compressed id stays in 63 bits."""
    bound = max(1, np.iinfo(np.int64).max // num_compressed // 2)
    drawn = np.random.default_rng(SEED_STEP * layer).integers(0, bound, size=longest, dtype=np.int64)
    return torch.from_numpy(2 * drawn + 1)


def hash_tables(engram: EngramConfig, num_compressed: int) -> list[HashTables]:
    """One per Engram layer, in the configuration's order."""
    tables = []
    for layer, listed in zip(engram.layers, table_primes(engram)):
        primes = torch.tensor(listed, dtype=torch.int64)
        offsets = primes.cumsum(0) - primes
        tables.append(HashTables(primes, offsets, multipliers(layer, engram.longest, num_compressed)))
    return tables


def ngrams(history: Tensor, ids: Tensor, pad: int, longest: int) -> Tensor:
    """Compressed ids (T, longest) of each token and its predecessors, nearest first.

    ``history`` holds the up to ``longest - 1`` ids before ``ids``. Before the start, and from an image on backwards,
    entries are ``pad``: an n-gram never reaches over a picture.
    """
    fill = torch.full((longest - 1 - len(history),), pad, dtype=ids.dtype)
    line = torch.cat((fill, history, ids))
    columns = []
    blocked = torch.zeros(len(ids), dtype=torch.bool)
    for back in range(longest):
        entry = line[longest - 1 - back : len(line) - back]
        blocked = blocked | (entry == IMAGE)
        columns.append(torch.where(blocked, pad, entry))
    return torch.stack(columns, dim=1)


def table_rows(grams: Tensor, tables: HashTables, num_heads: int) -> Tensor:
    """Rows (T, tables) that n-grams (T, longest) read: a running XOR of products, modulo each table's prime."""
    running = grams[:, 0].long() * tables.multipliers[0]
    columns = []
    for n in range(1, grams.shape[1]):
        running = running ^ (grams[:, n].long() * tables.multipliers[n])
        columns.append(running.unsqueeze(1).expand(-1, num_heads))
    return torch.cat(columns, dim=1) % tables.primes + tables.offsets

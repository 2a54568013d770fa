"""Replication and placement of one layer's experts from the tokens they were given in the past.

A *logical* expert is the model's, a *physical* one is a slot that holds a copy. Loads are (history, experts): token
counts per window of the past; the copies of an expert share its load evenly. Windows are not added up before the
choice: what counts is the sum over history of the greatest load, since a step waits for its slowest rank. All ties are
settled, so every rank computes the same placement. Nothing here measures, communicates or moves weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.contract.errors import ConfigError

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

NO_SLOT = -1


@dataclass(frozen=True, slots=True)
class ExpertPlacement:
    """Slot s belongs to rank ``s // slots_per_rank``.

    physical_to_logical (P,): the expert in each slot; logical_to_physical (E, most copies): an expert's slots
    ascending, padded with -1; num_replicas (E,): copies of each expert.
    """

    num_ranks: int
    physical_to_logical: Ints
    logical_to_physical: Ints
    num_replicas: Ints

    @property
    def slots_per_rank(self) -> int:
        return len(self.physical_to_logical) // self.num_ranks

    def rank_loads(self, loads: Floats) -> Floats:
        """(history, ranks): what each rank would have computed under these loads (history, experts)."""
        per_slot = (loads / self.num_replicas)[:, self.physical_to_logical]
        per_rank: Floats = per_slot.reshape(len(loads), self.num_ranks, self.slots_per_rank).sum(axis=2)
        return per_rank


def from_physical(physical_to_logical: Ints, num_experts: int, num_ranks: int) -> ExpertPlacement:
    """All maps from the one that says everything. Raises ConfigError when an expert has no slot or ranks differ."""
    if len(physical_to_logical) % num_ranks:
        raise ConfigError("slots", f"{len(physical_to_logical)} slots do not divide by {num_ranks} ranks")
    counts = np.bincount(physical_to_logical, minlength=num_experts)
    if len(counts) != num_experts or not counts.all():
        raise ConfigError("slots", "every expert needs a slot, and no slot holds an unknown one")
    slots = np.full((num_experts, counts.max()), NO_SLOT, dtype=np.int64)
    for expert in range(num_experts):
        own = np.flatnonzero(physical_to_logical == expert)
        slots[expert, : len(own)] = own
    return ExpertPlacement(num_ranks, physical_to_logical, slots, counts)


def check_loads(loads: NDArray[np.generic], num_slots: int, num_ranks: int) -> Floats:
    """Loads as float64. Raises ConfigError naming what cannot work."""
    out = np.asarray(loads, dtype=np.float64)
    if out.ndim != 2 or not out.size or not np.isfinite(out).all() or (out < 0).any():
        raise ConfigError("loads", "must be (history, experts), finite and not negative")
    if num_ranks < 1 or num_slots % num_ranks:
        raise ConfigError("slots", f"{num_slots} slots do not divide by {num_ranks} ranks")
    if num_slots < out.shape[1]:
        raise ConfigError("slots", f"{num_slots} slots cannot hold {out.shape[1]} experts")
    return out


def without_own(values: Floats) -> Floats:
    """(history, n) → per column the greatest of all *other* columns; 0 where there is none."""
    if values.shape[1] == 1:
        return np.zeros_like(values)
    order = np.argsort(-values, axis=1, kind="stable")[:, :2]
    first, second = np.take_along_axis(values, order, axis=1).T
    out = np.repeat(first[:, None], values.shape[1], axis=1)
    out[np.arange(len(values)), order[:, 0]] = second
    return out


def replicate(loads: Floats, num_slots: int) -> Ints:
    """(E,) copies: each spare slot to the expert whose further copy lowers the summed maximum most.

    Ties, common while several experts are equally hot, go to the greatest load per copy, then to the lower expert.
    """
    num_experts = loads.shape[1]
    replicas = np.ones(num_experts, dtype=np.int64)
    total = loads.sum(axis=0)
    for _ in range(num_slots - num_experts):
        shared = loads / replicas
        after = np.maximum(without_own(shared), loads / (replicas + 1)).sum(axis=0)
        least = np.flatnonzero(after <= after.min() * (1 + 1e-12))
        replicas[least[np.argmax((total / replicas)[least])]] += 1
    return replicas


def _copies(replicas: Ints) -> Ints:
    """The expert of each copy before placement: every expert once, then the spares in the order of experts."""
    experts = np.arange(len(replicas))
    return np.concatenate([experts, np.repeat(experts, replicas - 1)])


def place(
    loads: NDArray[np.generic], num_slots: int, num_ranks: int, *, by_dot_product: bool = False
) -> ExpertPlacement:
    """Copies by their total load descending, each to the rank with room where it costs least; ties to the lower rank.

    The cost of a rank is the summed maximum over ranks once the copy is there, or, ``by_dot_product``, the product of
    the copy's loads with the rank's: least where they are hot at different times. Raises ConfigError.
    """
    history = check_loads(loads, num_slots, num_ranks)
    replicas = replicate(history, num_slots)
    experts = _copies(replicas)
    per_copy = (history / replicas)[:, experts]
    room = np.full(num_ranks, num_slots // num_ranks)
    ranks: list[list[int]] = [[] for _ in range(num_ranks)]
    rank_loads = np.zeros((len(history), num_ranks))
    for copy in np.argsort(-per_copy.sum(axis=0), kind="stable"):
        load = per_copy[:, copy, None]
        if by_dot_product:
            cost = (rank_loads * load).sum(axis=0)
        else:
            cost = np.maximum(without_own(rank_loads), rank_loads + load).sum(axis=0)
        rank = int(np.argmin(np.where(room > 0, cost, np.inf)))
        ranks[rank].append(int(experts[copy]))
        rank_loads[:, rank] += load[:, 0]
        room[rank] -= 1
    return from_physical(np.array(ranks, dtype=np.int64).reshape(-1), history.shape[1], num_ranks)


def summed_maximum(placement: ExpertPlacement, loads: Floats) -> float:
    """The sum over history of the slowest rank's load: what placement tries to lower."""
    return float(placement.rank_loads(loads).max(axis=1).sum())


def imbalance(placement: ExpertPlacement, loads: Floats) -> float:
    """Slowest over mean rank, 1 is perfect: the mean over the windows that have any load."""
    per_rank = placement.rank_loads(loads)
    mean = per_rank.mean(axis=1)
    busy = mean > 0
    return float((per_rank.max(axis=1)[busy] / mean[busy]).mean()) if busy.any() else 1.0


def num_spares(num_experts: int, num_ranks: int, least: int = 1) -> int:
    """At least ``least`` spare slots, rounded up so that all slots divide by the group."""
    if num_experts < 1 or num_ranks < 1 or least < 0:
        raise ConfigError("spares", "experts and ranks must be positive, spares not negative")
    slots = -(-(num_experts + least) // num_ranks) * num_ranks
    return slots - num_experts

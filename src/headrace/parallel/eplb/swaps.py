"""Few moves instead of a new placement: exchange copies between ranks, or give a spare copy's slot to another expert,
as long as the summed maximum falls and moves are left. Every move costs the transfer of an expert's weights.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .placement import ExpertPlacement, Floats, Ints, check_loads, from_physical, summed_maximum

LEAST_GAIN = 1e-9  # relative; rounding must not keep weights moving


def _best_swap(placement: ExpertPlacement, loads: Floats) -> tuple[float, Ints]:
    """The exchange of two slots of different ranks that costs least, and what it costs. One slot is the slowest
    rank's (by total load): exchanges among the others cannot help it."""
    per_slot = (loads / placement.num_replicas)[:, placement.physical_to_logical]  # (H, P)
    ranks = np.arange(per_slot.shape[1]) // placement.slots_per_rank
    rank_loads = placement.rank_loads(loads)
    slowest = int(np.argmax(rank_loads.sum(axis=0)))
    mine, theirs = np.flatnonzero(ranks == slowest), np.flatnonzero(ranks != slowest)
    shift = per_slot[:, theirs][:, None, :] - per_slot[:, mine][:, :, None]  # (H, mine, theirs)
    here = rank_loads[:, slowest][:, None, None] + shift
    there = rank_loads[:, ranks[theirs]][:, None, :] - shift
    others = _greatest_without(rank_loads, slowest)[:, ranks[theirs]][:, None, :]
    cost = np.maximum(np.maximum(here, there), others).sum(axis=0)
    i, j = np.unravel_index(int(np.argmin(cost)), cost.shape)
    swapped = placement.physical_to_logical.copy()
    swapped[[mine[i], theirs[j]]] = swapped[[theirs[j], mine[i]]]
    return float(cost[i, j]), swapped


def _greatest_without(rank_loads: Floats, rank: int) -> Floats:
    """(H, R): the greatest load of all ranks but ``rank`` and the column's own; 0 where none is left."""
    masked = rank_loads.copy()
    masked[:, rank] = -np.inf
    order = np.argsort(-masked, axis=1, kind="stable")
    first, second = (np.take_along_axis(masked, order[:, k : k + 1], axis=1) for k in (0, 1))
    out = np.repeat(first, masked.shape[1], axis=1)
    np.put_along_axis(out, order[:, :1], second, axis=1)
    return np.maximum(out, 0.0)


def _cost(slots: Ints, loads: Floats, num_ranks: int) -> float:
    """The summed maximum of a placement that is only tried, without its maps."""
    per_slot = (loads / np.bincount(slots, minlength=loads.shape[1]))[:, slots]
    return float(per_slot.reshape(len(loads), num_ranks, -1).sum(axis=2).max(axis=1).sum())


def _best_replacement(placement: ExpertPlacement, loads: Floats, hot: int) -> tuple[float, Ints] | None:
    """The slot of a spare copy that would serve best as a further copy of the ``hot`` expert."""
    best: tuple[float, Ints] | None = None
    experts = placement.physical_to_logical
    for slot in np.flatnonzero(placement.num_replicas[experts] > 1):
        if experts[slot] == hot:
            continue
        replaced = experts.copy()
        replaced[slot] = hot
        cost = _cost(replaced, loads, placement.num_ranks)
        if best is None or cost < best[0]:
            best = (cost, replaced)
    return best


def improve(placement: ExpertPlacement, loads: NDArray[np.generic], max_moves: int) -> ExpertPlacement:
    """At most ``max_moves`` slots get another expert; each step is the exchange (two moves) or the replacement (one)
    that lowers the summed maximum most per move. Ties to the exchange, then to the lower slots. Raises ConfigError."""
    history = check_loads(loads, len(placement.physical_to_logical), placement.num_ranks)
    num_experts = history.shape[1]
    moves = max_moves
    while moves > 0 and placement.num_ranks > 1:
        now = summed_maximum(placement, history)
        options: list[tuple[float, int, Ints]] = []
        if moves >= 2:
            cost, swapped = _best_swap(placement, history)
            options.append(((now - cost) / 2, 2, swapped))
        hot = int(np.argmax((history / placement.num_replicas).sum(axis=0)))
        if (replacement := _best_replacement(placement, history, hot)) is not None:
            options.append((now - replacement[0], 1, replacement[1]))
        gain, used, slots = max(options, key=lambda option: option[0], default=(0.0, 0, None))
        if slots is None or gain <= LEAST_GAIN * now:
            break
        placement = from_physical(slots, num_experts, placement.num_ranks)
        moves -= used
    return placement

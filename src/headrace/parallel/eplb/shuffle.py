"""From one placement to the next: experts that stay on a rank keep their slot, and every other slot learns where to
take its weights from. Plans transfers, makes none.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .placement import ExpertPlacement, Ints, from_physical


@dataclass(frozen=True, slots=True)
class Move:
    """Slot ``target`` gets the weights that slot ``source`` holds before the shuffle."""

    source: int
    target: int


def _keep(old: Ints, new: Ints) -> Ints:
    """The experts ``new`` of one rank, arranged so that those also in ``old`` stay where they are."""
    arranged = np.full(len(old), -1, dtype=np.int64)
    rest = new.tolist()
    for slot, expert in enumerate(old.tolist()):
        if expert in rest:
            arranged[slot] = expert
            rest.remove(expert)
    arranged[arranged < 0] = rest
    return arranged


def keep_slots(old: ExpertPlacement, new: ExpertPlacement) -> ExpertPlacement:
    """``new``, its slots rearranged inside each rank so that as few as possible change."""
    size = new.slots_per_rank
    rows = [
        _keep(old.physical_to_logical[r * size : (r + 1) * size], new.physical_to_logical[r * size : (r + 1) * size])
        for r in range(new.num_ranks)
    ]
    return from_physical(np.concatenate(rows), len(new.num_replicas), new.num_ranks)


def moves(old: ExpertPlacement, new: ExpertPlacement) -> list[Move]:
    """One per slot whose expert changes. The source is a slot of the same rank if there is one (no transfer), else
    one of the expert's slots in turn, so that no rank sends all."""
    size = new.slots_per_rank
    sent = np.zeros(len(old.physical_to_logical), dtype=np.int64)
    out = []
    for target in np.flatnonzero(old.physical_to_logical != new.physical_to_logical).tolist():
        sources = np.flatnonzero(old.physical_to_logical == new.physical_to_logical[target])
        near = sources[sources // size == target // size]
        pool = near if len(near) else sources
        source = int(pool[np.argmin(sent[pool])])
        sent[source] += 1
        out.append(Move(source, target))
    return out

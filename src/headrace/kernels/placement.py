"""Where the kernel threads run: how many, on which processors, with memory from which nodes. Pure functions.

Two threads of one core share its multipliers, so cores are filled first and their second threads last; and a weight
that lies on another node's memory is read through the link between them, so nodes are filled one after the other.
Where threads run never changes a bit of a result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .topology import Processor, Topology

PINNINGS = ("auto", "none", "cores")


@dataclass(frozen=True, slots=True)
class Placement:
    """``processors``: one per thread, the caller first; empty: the operating system moves them as it likes.

    ``nodes``: memory comes from these, page by page in turns when they are several; empty: from wherever a page is
    touched first.
    """

    processors: tuple[int, ...] = ()
    nodes: tuple[int, ...] = ()


def default_threads(topology: Topology) -> int:
    """One per usable processor, but no more than the control group's quota pays for: a spinning thread without time
    to run holds up all others."""
    count = len(topology.processors)
    return count if topology.quota is None else max(1, min(count, int(topology.quota)))


def fill_order(topology: Topology) -> list[Processor]:
    """Processors in the order in which threads take them: node by node, first threads of cores before second ones."""
    return sorted(topology.processors, key=lambda p: (p.node, p.thread, p.package, p.core, p.id))


def place(topology: Topology, num_threads: int, pinning: str) -> Placement:
    """``auto`` pins only on machines with several memory nodes: elsewhere a pinned thread gains little, and loses much
    when something else wants its processor. Never pins more threads than there are processors."""
    several = len(topology.nodes) > 1
    if pinning == "none" or (pinning == "auto" and not several) or num_threads > len(topology.processors):
        return Placement()
    chosen = _choose(topology, num_threads)
    nodes = tuple(sorted({each.node for each in chosen})) if several else ()
    return Placement(tuple(each.id for each in chosen), nodes)


def _choose(topology: Topology, num_threads: int) -> Sequence[Processor]:
    """The first node with enough cores, or all nodes' cores in fill order; second threads only when cores run out."""
    order = fill_order(topology)
    for node in topology.nodes:
        cores = [each for each in order if each.node == node and each.thread == 0]
        if len(cores) >= num_threads:
            return cores[:num_threads]
    return sorted(order, key=lambda p: p.thread)[:num_threads]


def share_out(topology: Topology, counts: Sequence[int], pinning: str) -> list[tuple[int, ...]]:
    """Processors of each rank of a group that shares a machine, ``counts`` of them, no processor given twice; nothing
    for all where ``place`` would bind nothing. A rank keeps to the node with the most free cores, so that ranks spread
    over nodes and each reads its own weights from near by."""
    several = len(topology.nodes) > 1
    if pinning == "none" or (pinning == "auto" and not several) or sum(counts) > len(topology.processors):
        return [()] * len(counts)
    free, shares = fill_order(topology), []
    for count in counts:
        best = max(topology.nodes, key=lambda node: _room(free, node))
        nearest = sorted(free, key=lambda p: (p.node != best, p.thread))
        shares.append(tuple(sorted(each.id for each in nearest[:count])))
        free = [each for each in free if each.id not in shares[-1]]
    return shares


def _room(free: Sequence[Processor], node: int) -> tuple[int, int, int]:
    """Free cores, then free processors; of equal nodes the first."""
    own = [each for each in free if each.node == node]
    return sum(each.thread == 0 for each in own), len(own), -node

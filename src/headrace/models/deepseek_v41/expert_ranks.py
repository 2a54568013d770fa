"""Routed experts spread over ranks: rows travel to the experts they chose, and experts move to where rows are.

Every rank runs every step, with rows of its own or none, and every layer of it: ranks wait for each other's rows. A
token's contributions come back one by one and are added as on one rank, so it has the same bits with any number of
ranks, any placement and any copy of an expert. Lives on the device thread; others read ``load`` only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headrace.contract.errors import GroupBroken
from headrace.contract.stats import ExpertLoad
from headrace.parallel.dispatch import Dispatched, combine, dispatch
from headrace.parallel.eplb.balancer import Balancer, Change, ExpertShare
from headrace.parallel.eplb.placement import ExpertPlacement
from headrace.parallel.eplb.stats import RebalanceConfig
from headrace.parallel.exchange import Exchange

from .arithmetic import Arithmetic
from .config import V41Config
from .expert_weights import expert_bytes, pack_expert, unpack_expert
from .experts import run_expert
from .params import ExpertParams, MoEParams
from .step import Program

SPREAD = 23333  # copies of an expert serve tokens in turn, beginning elsewhere on each rank


@dataclass(frozen=True, slots=True)
class LayerSlots:
    """One layer as it stands: replaced whole, so that maps and weights always belong together.

    table (experts, most copies) int64 and replicas (experts,) int64; held: the weights of this rank's slots.
    """

    placement: ExpertPlacement
    table: Tensor
    replicas: Tensor
    held: tuple[ExpertParams, ...]

    @staticmethod
    def of(placement: ExpertPlacement, held: Sequence[ExpertParams]) -> LayerSlots:
        table, replicas = (torch.from_numpy(m) for m in (placement.logical_to_physical, placement.num_replicas))
        return LayerSlots(placement, table, replicas, tuple(held))

    def slots(self, chosen: Tensor, rank: int) -> Tensor:
        """(T, k) experts -> (T, k) slots of the group."""
        turns = rank + torch.arange(len(chosen)).unsqueeze(1) * SPREAD
        return self.table[chosen, turns % self.replicas[chosen]]


class ParallelExperts:
    """This rank's end (``experts.RoutedExperts``). ``layers`` hold the experts of ``share`` and no others."""

    def __init__(
        self,
        exchange: Exchange,
        share: ExpertShare,
        layers: Sequence[MoEParams],
        arithmetic: Arithmetic,
        config: V41Config,
        rebalance: RebalanceConfig | None,
    ) -> None:
        self._exchange, self._arithmetic, self._config = exchange, arithmetic, config
        first = share.placement(config.moe.num_experts)
        self._layers = [LayerSlots.of(first, layer.experts) for layer in layers]
        self._balancer = Balancer(exchange, [first] * len(layers), config.moe.num_experts, rebalance)
        self._counts = np.zeros((len(layers), config.moe.num_experts), dtype=np.int64)
        self._rows = self._moved = 0
        self.load = ExpertLoad()

    @contextmanager
    def step(self) -> Iterator[None]:
        """Around every step, of every rank. What fails in here would leave the others waiting: the group ends."""
        try:
            if (change := self._balancer.next_change()) is not None:
                self._move(change)
            self._counts[:], before = 0, self._rows
            yield
            self._balancer.count(self._counts, self._rows - before)
        except GroupBroken:
            raise
        except Exception as error:
            self.leave()
            rank, size = self._exchange.rank, self._exchange.size
            raise GroupBroken(f"rank {rank} of {size} failed in a step that others share: {error}") from error
        self.load = ExpertLoad(rows=self._rows, moves=self._moved, balance=self._balancer.balance)

    def run(
        self, program: Program, layer: int, params: MoEParams, hidden: Tensor, chosen: Tensor, weights: Tensor
    ) -> Tensor:
        """As ``RoutedExperts``; ``params`` holds what this rank began with and is not looked at."""
        del params
        slots = self._layers[layer]
        self._counts[layer] = np.bincount(chosen.flatten().numpy(), minlength=self._config.moe.num_experts)
        wanted = slots.slots(chosen, self._exchange.rank)
        handle = dispatch(self._exchange, hidden, wanted, weights, slots.placement.slots_per_rank)
        self._rows += len(handle.rows)
        answers = combine(self._exchange, handle, self._answers(program, slots, handle))
        out = torch.zeros_like(hidden)
        for choice in range(chosen.shape[1]):
            out += answers[:, choice]
        return out

    def leave(self) -> None:
        """Ends the group."""
        self._exchange.close()

    def company(self, program: Program) -> None:
        """A step without rows of its own: serves the others' in every layer."""
        none = torch.zeros(0, self._config.moe.num_chosen)
        hidden = torch.zeros(0, self._config.hidden_size)
        with self.step():
            for layer in range(len(self._layers)):
                self.run(program, layer, None, hidden, none.long(), none)  # type: ignore[arg-type]

    def _answers(self, program: Program, slots: LayerSlots, handle: Dispatched) -> Tensor:
        out, limit = torch.empty_like(handle.rows), program.config.swiglu_limit
        for slot in handle.slots.unique().tolist():
            rows = (handle.slots == slot).nonzero(as_tuple=True)[0]
            expert, weights = slots.held[slot], handle.weights[rows]
            out[rows] = run_expert(program.arithmetic, expert, handle.rows[rows], weights, limit)
        return out

    def _move(self, change: Change) -> None:
        """Weights change places, then the layer is replaced as one. Copies on one rank share their weights."""
        old, size = self._layers[change.layer], change.placement.slots_per_rank
        held, rank = list(old.held), self._exchange.rank
        outgoing: list[list[Tensor]] = [[] for _ in range(self._exchange.size)]
        for move in change.moves:
            source, target = move.source // size, move.target // size
            if source == target == rank:
                held[move.target % size] = old.held[move.source % size]
            elif source == rank:
                outgoing[target].append(pack_expert(self._arithmetic.ops, old.held[move.source % size], self._config))
        none = torch.zeros(0, expert_bytes(self._config), dtype=torch.uint8)
        came = self._exchange.rows([torch.stack(part) if part else none for part in outgoing])
        arrived = [iter(part) for part in came]
        for move in change.moves:
            source, target = move.source // size, move.target // size
            if target == rank != source:
                held[move.target % size] = unpack_expert(self._arithmetic.ops, next(arrived[source]), self._config)
                self._moved += 1
        self._layers[change.layer] = LayerSlots.of(change.placement, held)

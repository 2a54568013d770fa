"""Ranks that share a V4.1 model's experts: engines that vote and exchange rows, on threads here or in processes of
their own. Test helper."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from harness import Outcome, make_engine, outcome_of
from v41_config import narrow

from headrace.api.launch import token_map_of
from headrace.api.text.tokenizer import load_tokenizer
from headrace.contract.plan import Role
from headrace.contract.request import Request
from headrace.contract.result import TokenDelta
from headrace.engine.engine import Engine
from headrace.engine.phase_voted import PhaseVoted
from headrace.kernels.resolve import resolve_ops
from headrace.models.deepseek_v41.assembly import load_v41
from headrace.models.deepseek_v41.forward import V41Model
from headrace.models.weights import open_checkpoint
from headrace.models.weights.dummy import DummyCheckpoint
from headrace.parallel.collectives import Collective, LocalGroup
from headrace.parallel.eplb.balancer import ExpertShare
from headrace.parallel.eplb.stats import RebalanceConfig
from headrace.parallel.exchange import LocalExchange
from headrace.parallel.gloo import GlooExchange, GlooGroup

WAIT_S = 120.0


def rank_engine(model: V41Model, votes: Collective, **limits: Any) -> Engine:
    settings: dict[str, Any] = {"num_blocks": 600, "block_size": 8, "max_model_len": 512, "graphs": "none"}
    engine = make_engine(model, role=int(Role.NORMAL), **(settings | limits))
    engine._cadence = PhaseVoted(votes, all_interval=3, any_interval=5)
    return engine


def run_rank(engine: Engine, asked: Sequence[Request]) -> list[Outcome]:
    """Ticks until the whole group has nothing left, which all ranks see in the same vote. Requests of the others must
    have been submitted too."""
    deltas: dict[str, list[TokenDelta]] = {item.request_id: [] for item in asked}
    for _ in range(20_000):
        for delta in engine.tick():
            deltas[delta.request_id].append(delta)
        if engine.idle:
            return [outcome_of(deltas[item.request_id]) for item in asked]
    raise AssertionError("the engines do not come to an end")


@cache
def dummy_share(size: int, rank: int, spares: int = 1) -> V41Model:
    """``v41_config.dummy_model()``, but with a rank's experts only."""
    torch.set_num_threads(1)
    checkpoint, ops = DummyCheckpoint("dummy", narrow(), seed=5), resolve_ops("cpu", strict=True)
    return load_v41(checkpoint, ops, None, "float32", None, ExpertShare(rank, size, spares))


class Threads:
    """A group of threads; ``models`` are to be loaded with the ranks' shares. ``run`` gives outcomes by rank."""

    def __init__(self, models: Sequence[V41Model], rebalance: RebalanceConfig | None = None, **limits: Any) -> None:
        self.exchange, votes = LocalExchange(len(models), WAIT_S), LocalGroup(len(models), WAIT_S)
        self.models, self.failures = models, [None] * len(models)  # type: ignore[var-annotated]
        for rank, model in enumerate(models):
            model.share_experts(self.exchange.member(rank), rebalance)
        self.engines = [rank_engine(model, votes.member(rank), **limits) for rank, model in enumerate(models)]

    def run(self, asked: Sequence[Sequence[Request]]) -> list[list[Outcome]]:
        for engine, items in zip(self.engines, asked):
            for item in items:
                engine.submit(item)
        outcomes: list[list[Outcome]] = [[] for _ in self.engines]

        def body(rank: int) -> None:
            try:
                outcomes[rank] = run_rank(self.engines[rank], asked[rank])
            except Exception as error:
                self.failures[rank] = error

        on_threads([lambda rank=rank: body(rank) for rank in range(len(self.engines))])  # type: ignore[misc]
        return outcomes

    def close(self) -> None:
        for engine in self.engines:
            engine.close()


def on_threads(work: Sequence[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=each) for each in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()


def process_rank(rank: int, size: int, folder: Path, checkpoint: Path, asked: list[list[Request]], news: Any) -> None:
    """A rank in a process of its own: its share of a checkpoint, gloo for votes and rows; sends its outcomes."""
    torch.set_num_threads(1)
    share, token_map = ExpertShare(rank, size, 1), token_map_of(load_tokenizer(checkpoint))
    ops = resolve_ops("cpu", strict=True)
    model = load_v41(open_checkpoint(checkpoint), ops, None, "float32", token_map, share)
    model.share_experts(GlooExchange(rank, size, f"file:{folder / 'experts'}", WAIT_S), RebalanceConfig(1, 4, 6))
    votes = GlooGroup(rank, size, f"file:{folder / 'votes'}", WAIT_S)
    engine = rank_engine(model, votes, block_size=32, token_budget=50)
    for item in asked[rank]:
        engine.submit(item)
    # All have submitted once they have voted on it: nobody ends before the others begin.
    votes.least([0])
    news.send((run_rank(engine, asked[rank]), model.expert_load()))

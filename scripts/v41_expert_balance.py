"""What moving experts brings on a trained model's own routing, and what requests notice of it:

    .venv/bin/python scripts/v41_expert_balance.py --model v41-mini --table docs/v41.md

Requests go on from held-out text, all at once, drawn with seeds. First on one engine that counts which experts every
step asks: what ranks would have computed, slowest over mean, with experts where they begin and moved by the policy as
the steps come. That is exact: the same on every machine. Then on a group of two processes that share the experts, with
moves and without: the balance it reports, the experts it moved, and the times between tokens.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from headrace import LLM, SamplingParams
from headrace.contract.errors import ConfigError
from headrace.lab.bench.documents import check_text, insert_text
from headrace.lab.bench.machine import describe, machine_facts
from headrace.lab.script_arguments import positive, positives, run_script, v41_source
from headrace.lab.v41_training.measure import prompts_of
from headrace.lab.v41_training.text import VOCAB, read_texts
from headrace.models.deepseek_v41.experts import LocalExperts
from headrace.models.deepseek_v41.forward import V41Model
from headrace.models.deepseek_v41.params import MoEParams
from headrace.models.deepseek_v41.step import Program
from headrace.models.weights import open_checkpoint
from headrace.parallel.eplb.balancer import Balancer, ExpertShare
from headrace.parallel.eplb.placement import imbalance
from headrace.parallel.eplb.stats import RebalanceConfig
from headrace.parallel.exchange import LocalExchange

MARKER = "v41 expert balance"
Counts = NDArray[np.int64]


class CountingExperts(LocalExperts):
    """All experts are here, and every step's choices are kept: ``steps`` has (layers, experts) counts of each."""

    def __init__(self, model: V41Model) -> None:
        self._shape = (model.config.num_layers, model.config.moe.num_experts)
        self.steps: list[Counts] = []

    def run(
        self, program: Program, layer: int, params: MoEParams, hidden: Tensor, chosen: Tensor, weights: Tensor
    ) -> Tensor:
        if layer == 0:
            self.steps.append(np.zeros(self._shape, dtype=np.int64))
        self.steps[-1][layer] = np.bincount(chosen.flatten().numpy(), minlength=self._shape[1])
        return super().run(program, layer, params, hidden, chosen, weights)


@dataclass(frozen=True)
class Placed:
    """``before``, ``after``: slowest over mean rank of a layer's step, the mean over steps after the first placement.
    ``moved``: slots that got another rank's expert."""

    ranks: int
    slots: int
    before: float
    after: float
    moved: int
    placements: int


@dataclass(frozen=True)
class Served:
    """A run of the group. Times are between two tokens of a request, ms. ``balance``: 0 where none is known yet."""

    moves: int
    balance: float
    p50: float
    p99: float
    longest: float


def routing(args: argparse.Namespace, prompts: list[list[int]]) -> list[Counts]:
    with LLM(args.model, kv_store="off", num_threads=1) as llm:
        model = llm.engine.worker._runner.model
        assert isinstance(model, V41Model)  # ``check`` has seen to that
        model.experts = counting = CountingExperts(model)
        generate(llm, prompts, args.tokens)
    return counting.steps


def place(steps: list[Counts], ranks: int, spares: int, config: RebalanceConfig) -> Placed:
    num_layers, num_experts = steps[0].shape
    first = ExpertShare(0, ranks, spares).placement(num_experts)
    balancer = Balancer(LocalExchange(1).member(0), [first] * num_layers, num_experts, config)
    before, after, moved, placements = [], [], 0, 0
    for number, counts in enumerate(steps):
        if (change := balancer.next_change()) is not None:
            moved += sum(m.source // first.slots_per_rank != m.target // first.slots_per_rank for m in change.moves)
            placements += 1
        balancer.count(counts, 0)
        if number < config.interval + num_layers:
            continue
        for layer, row in enumerate(counts.astype(np.float64)):
            before.append(imbalance(first, row[None]))
            after.append(imbalance(balancer.placements[layer], row[None]))
    slots = len(first.physical_to_logical)
    return Placed(ranks, slots, statistics.mean(before), statistics.mean(after), moved, placements)


def generate(llm: LLM, prompts: list[list[int]], tokens: int) -> list[float]:
    """Milliseconds between tokens, of all requests."""
    params = [SamplingParams(temperature=1.0, seed=i, max_tokens=tokens, ignore_eos=True) for i in range(len(prompts))]
    prepared = [llm.prepare({"prompt_token_ids": ids}, p) for ids, p in zip(prompts, params)]
    last: dict[str, float] = {}
    gaps = []
    for news in llm.feed(prepared):
        now = time.perf_counter()
        for output in news:
            if output.request_id in last:
                gaps.append((now - last[output.request_id]) * 1000)
            last[output.request_id] = now
    return gaps


def serve(args: argparse.Namespace, prompts: list[list[int]], interval: int) -> Served:
    spread: dict[str, Any] = {"data_parallel_size": 2, "discipline": "voted", "expert_parallel": True}
    window = min(args.window, interval or args.window)
    with LLM(
        args.model,
        kv_store="off",
        num_threads=2,
        expert_spares=args.spares,
        rebalance_interval=interval,
        rebalance_window=window,
        **spread,
    ) as group:
        gaps = sorted(generate(group, prompts, args.tokens))
        time.sleep(1.0)  # what ranks report is a little older than their answers
        load = group.stats.experts
    return Served(load.moves, load.balance, gaps[len(gaps) // 2], gaps[len(gaps) * 99 // 100], gaps[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="v41-mini")
    parser.add_argument("--requests", type=positive, default=32)
    parser.add_argument("--tokens", type=positive, default=200, help="of each request")
    parser.add_argument("--prompt", type=positive, default=32, help="tokens of each prompt")
    parser.add_argument("--interval", type=positive, default=40)
    parser.add_argument("--window", type=positive, default=40)
    parser.add_argument("--spares", type=int, default=1)
    parser.add_argument("--ranks", type=positives, default=[2, 4, 8], metavar="N,N")
    parser.add_argument("--rounds", type=int, default=1, help="of the group, without moves and with")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--table", type=Path, help="document to write the tables into")
    args = parser.parse_args()
    if args.table is not None:
        check_text(args.table, MARKER)
    check(args)
    prompts = prompts_of(read_texts().held_out, args.prompt)[: args.requests]
    if len(prompts) < args.requests:
        raise ConfigError("--requests", f"the held-out text has {len(prompts)} prompts of {args.prompt} tokens")
    config = RebalanceConfig(args.spares, args.window, args.interval)
    steps = routing(args, prompts)
    placed = [place(steps, ranks, args.spares, config) for ranks in args.ranks]
    served = [
        (name, serve(args, prompts, n)) for _ in range(args.rounds) for name, n in (("no", 0), ("yes", args.interval))
    ]
    if args.json:
        groups = [{"moving": name} | asdict(run) for name, run in served]
        print(json.dumps({"steps": len(steps), "placed": [asdict(row) for row in placed], "served": groups}))
        return
    words = f"{len(steps)} steps of {args.requests} requests, experts placed every {args.interval} steps.\n\n"
    text = words + placed_table(placed) + (served_table(served) if served else "")
    print(text)
    if args.table is not None:
        insert_text(args.table, MARKER, f"Measured on: {describe(machine_facts())}; model {args.model}. {text}")


def check(args: argparse.Namespace) -> None:
    """Before anything is loaded or measured. Raises ConfigError."""
    source = v41_source(args.model, vocab=VOCAB)
    text = open_checkpoint(Path(source.path), dummy_seed=0 if source.dummy else None).config["text_config"]
    layers, experts = text["num_hidden_layers"], text["n_routed_experts"]
    if args.spares < 0:
        raise ConfigError("--spares", f"must not be negative, got {args.spares}")
    if max(args.ranks) > experts:
        raise ConfigError("--ranks", f"{max(args.ranks)} ranks cannot share {experts} experts")
    if args.window > args.interval:
        raise ConfigError("--window", f"must be no more than --interval, {args.interval}, got {args.window}")
    least = args.interval + layers + 1  # a placement, a turn for every layer, and a step that is measured
    if args.tokens < least:
        raise ConfigError("--tokens", f"must be at least {least} with --interval {args.interval}, got {args.tokens}")


def placed_table(rows: list[Placed]) -> str:
    lines = ["| ranks | slots | slowest over mean, before | after | experts copied to other ranks | layers changed |"]
    lines.append("|---:|---:|---:|---:|---:|---:|")
    lines += [f"| {p.ranks} | {p.slots} | {p.before:.3f} | {p.after:.3f} | {p.moved} | {p.placements} |" for p in rows]
    return "\n".join(lines) + "\n"


def served_table(rows: list[tuple[str, Served]]) -> str:
    lines = ["", "| two processes, experts move | moved | balance | between tokens, p50, ms | p99 | longest |"]
    lines.append("|---|---:|---:|---:|---:|---:|")
    for name, s in rows:
        balance = f"{s.balance:.3f}" if s.balance else "–"  # nothing was measured over enough steps yet
        lines.append(f"| {name} | {s.moves} | {balance} | {s.p50:.1f} | {s.p99:.1f} | {s.longest:.1f} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    run_script(main)

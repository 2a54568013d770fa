"""Drives the true engine over a tiny random model and returns results that can be compared bit for bit."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tiny_models
from quantised import Quantised

from headrace._core import Scheduler
from headrace.contract.ports import StepObserver
from headrace.contract.request import Request, SamplingParams
from headrace.contract.result import TokenDelta
from headrace.engine.drafting import Drafting
from headrace.engine.engine import Engine
from headrace.grammar.compiler import GrammarPool
from headrace.kernels.resolve import resolve_ops
from headrace.models.context import Model
from headrace.models.registry import load_model
from headrace.models.weights import open_checkpoint
from headrace.obs.launch_guard import LaunchGuard
from headrace.speculation.drafter import Drafter
from headrace.worker.graphs import Graphs, settle_policy
from headrace.worker.kv_tensors import allocate_kv
from headrace.worker.runner import Runner
from headrace.worker.speculator import Speculator
from headrace.worker.worker import Worker

_names = itertools.count()


@dataclass(frozen=True)
class Outcome:
    """What one request brought: ids, and the exact bits of every logprob reported."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    prompt_logprobs: tuple[float | None, ...]
    finish_reason: str
    num_cached_tokens: int

    @property
    def bits(self) -> tuple[Any, ...]:
        """Everything that parity compares (how much was cached may differ)."""
        return self.token_ids, self.logprobs, self.prompt_logprobs, self.finish_reason


def load_tiny(family: str, folder: Path, backend: str = "cpu") -> Model:
    """A tiny random model; ``family+blocks`` has a quantised copy of the family's weights, wide enough for blocks."""
    name, _, blocks = family.partition("+")
    config = dict(tiny_models.CONFIGS[name])
    if blocks:
        config |= {"hidden_size": 64, "intermediate_size": 96}
    path = tiny_models.write_directory(folder / family, config, tiny_models.random_tensors(config))
    checkpoint = open_checkpoint(path)
    ops = resolve_ops(backend, strict=True)
    if not blocks:
        return load_model(checkpoint, ops, exact=True)
    return load_model(Quantised(checkpoint), ops, exact=False)


def make_engine(
    model: Model,
    *,
    overlap: bool = True,
    num_blocks: int = 200,
    block_size: int = 4,
    backend: str = "cpu",
    graphs: str = "full",
    kv_dtype: str = "float32",
    drafter: Drafter | Callable[[Runner], Drafter] | None = None,
    max_drafts: int = 5,
    observer: StepObserver | None = None,
    grammars: GrammarPool | None = None,
    **limits: Any,
) -> Engine:
    """A fresh engine with a KV pool full of NaN: nothing unwritten may be read. ``drafter`` may be what makes one."""
    limits.setdefault("max_model_len", min(model.max_positions, 1 << 16))
    groups = [(int(g.kind), g.window) for g in model.kv_layout.groups]
    core = Scheduler(num_blocks=num_blocks, block_size=block_size, groups=groups, **limits)
    kv = allocate_kv(model.kv_layout, num_blocks, block_size, kv=kv_dtype, poison=True)
    ops = resolve_ops(backend)
    sizes = (7, limits.get("token_budget", 512))
    most = limits.get("max_seqs", 64) * (1 if drafter is None else 1 + max_drafts)
    captured = Graphs(model, ops, kv, settle_policy(graphs, backend), sizes, most)
    runner, guard = Runner(model, ops, kv, captured), LaunchGuard(on=True)
    made = drafter(runner) if callable(drafter) else drafter
    speculator = None if made is None else Speculator(made, max_drafts, block_size, model.vocab_size)
    worker = Worker(runner, block_size, guard=guard, speculator=speculator)
    drafting = None if drafter is None else Drafting(max_drafts)
    about = {"overlap": overlap, "guard": guard, "drafting": drafting, "observer": observer, "grammars": grammars}
    return Engine(core, worker, shares_open_blocks=not model.kv_layout.rewrites, **about)  # type: ignore[arg-type]


def request(prompt: Sequence[int], eos_ids: tuple[int, ...] = (), **sampling: Any) -> Request:
    sampling.setdefault("max_tokens", 8)
    sampling.setdefault("temperature", 0.0)
    sampling.setdefault("logprobs", 2)
    sampling.setdefault("seed", 1)
    params = SamplingParams(**sampling)
    return Request(request_id=f"r{next(_names)}", prompt_token_ids=list(prompt), sampling=params, eos_ids=eos_ids)


def run(engine: Engine, requests: Sequence[Request], max_ticks: int = 20_000) -> list[Outcome]:
    """Runs the requests together to their ends; outcomes in their order. Leaves the engine open and empty."""
    for item in requests:
        engine.submit(item)
    deltas: dict[str, list[TokenDelta]] = {item.request_id: [] for item in requests}
    ticks = 0
    while engine.intake.busy or not engine.idle:
        ticks += 1
        assert ticks < max_ticks, "the engine does not come to an end"
        engine.rest(0.05)  # only while everybody waits, for a grammar
        for delta in engine.tick():
            deltas[delta.request_id].append(delta)
    assert engine.core.num_used_blocks == 0, "blocks were left behind"
    return [outcome_of(deltas[item.request_id]) for item in requests]


def outcome_of(deltas: list[TokenDelta]) -> Outcome:
    assert deltas
    assert deltas[-1].finish_reason is not None
    assert all(d.finish_reason is None for d in deltas[:-1])
    prompt = next((d.prompt_logprobs for d in deltas if d.prompt_logprobs), [])
    return Outcome(
        token_ids=tuple(t for d in deltas for t in d.token_ids),
        logprobs=tuple(x for d in deltas for e in d.logprobs or () for x in (e.logprob, *e.top_logprobs)),
        prompt_logprobs=tuple(None if e is None else e.logprob for e in prompt),
        finish_reason=deltas[-1].finish_reason,
        num_cached_tokens=deltas[0].num_cached_tokens,
    )

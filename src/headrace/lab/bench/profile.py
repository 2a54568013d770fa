"""Where one step spends its time: a captured decode step and a captured prefill step, op by op.

The programs are those the worker replays, run over made-up tokens and zeroed caches; nothing is sampled. Timing each
call adds some tens of nanoseconds to it. With one thread calls are timed in processor time, which a busy machine does
not change; the whole step is always timed by the clock. Measures only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor

from headrace import _kernels, env
from headrace.config import EngineConfig, kv_format
from headrace.contract.errors import ConfigError
from headrace.contract.plan import GraphMode
from headrace.kernels.ops import Ops
from headrace.kernels.resolve import resolve_ops
from headrace.kernels.runtime import configure
from headrace.models.context import ForwardContext, GroupIndex, LayerKV, Model
from headrace.models.registry import load_model
from headrace.models.sources import resolve_model
from headrace.models.weights import open_checkpoint
from headrace.worker.graphs import StepGraph
from headrace.worker.kv_tensors import allocate_kv
from headrace.worker.memory import free_memory_bytes

from .engine_settings import engine_settings, refuse_others, threads_of
from .progress import now
from .report import Bars, Report
from .stats import Spread, spread

HONOURED = (
    "model", "offline", "dtype", "strict", "block_size", "kv_dtype", "kv_memory", "kv_memory_fraction", "num_threads",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Shape:
    """``slices`` sequences that each compute ``length`` tokens after ``depth`` that are cached."""

    slices: int
    length: int
    depth: int

    @property
    def tokens(self) -> int:
        return self.slices * self.length

    @property
    def words(self) -> str:
        if self.length == 1:
            return f"decode, {self.slices} row{'s' * (self.slices > 1)} at depth {self.depth}"
        return f"prefill, {self.tokens} tokens"


@dataclass(frozen=True, slots=True)
class Subject:
    """A loaded model and what running it takes."""

    model: Model
    ops: Ops
    block_size: int
    kv: str


def bench_profile(
    config: EngineConfig, rows: Sequence[int] = (1,), depth: int = 128, prompt: int = 512, repeats: int = 15
) -> Report:
    """A decode step for each of ``rows``, then a prefill step. Raises ConfigError when a shape exceeds the model."""
    if config.model.backend != "cpu":
        raise ConfigError("backend", "only steps of the cpu backend can be captured")
    refuse_others(config, HONOURED, "is ignored here, where a captured step runs outside of any engine: leave it out")
    shapes = [*(Shape(count, 1, depth) for count in rows), Shape(1, prompt, 0)]
    report = Report("profile", {"rows": list(rows), "depth": depth, "prompt": prompt, "repeats": repeats})
    now(f"loading {config.model.model}")
    subject = open_subject(config, report)
    for shape in shapes:
        _check_shape(config, subject, shape)
    for shape in shapes:
        profile_step(report, subject, shape, repeats)
    return report.finish()


def _check_shape(config: EngineConfig, subject: Subject, shape: Shape) -> None:
    """Raises ConfigError for a step beyond the model's positions or the memory for KV."""
    layout, decodes = subject.model.kv_layout, shape.length == 1
    if shape.depth + shape.length > subject.model.max_positions:
        reason = f"{shape.words}: the model has {subject.model.max_positions} positions"
        raise ConfigError("depth" if decodes else "prompt", reason)
    budget = config.cache.kv_memory or int(free_memory_bytes() * config.cache.kv_memory_fraction)
    needed = _num_blocks(subject, shape) * layout.block_bytes(subject.block_size, subject.kv)
    if needed > budget:
        reason = f"{shape.words}: its KV takes {needed >> 20} MiB, more than the {budget >> 20} MiB there are for it"
        raise ConfigError("rows" if decodes else "prompt", reason)


def open_subject(config: EngineConfig, report: Report) -> Subject:
    """Loads the model as an engine would, without an engine."""
    source = resolve_model(config.model.model, offline=config.model.offline)
    configure("cpu", threads_of(config), env.isa())
    ops = resolve_ops("cpu", strict=config.model.strict)
    checkpoint = open_checkpoint(source.path, dummy_seed=0 if source.dummy else None)
    model = load_model(checkpoint, ops, exact=config.model.dtype == "float32")
    settings = engine_settings(config) | {"model": source.name}
    report.settings |= {name: value for name, value in settings.items() if name not in ("graphs", "overlap")}
    return Subject(model, ops, config.cache.block_size, kv_format(config))


def profile_step(report: Report, subject: Subject, shape: Shape, repeats: int) -> None:
    """Rows for the whole step, its barriers and each kind of call, and a bar chart of the latter."""
    now(shape.words)
    kv = _caches(subject, shape)
    logits = shape.slices + (shape.slices == shape.tokens)  # the two capacities must differ
    graph = StepGraph(subject.model, subject.ops, kv, GraphMode.FULL, shape.tokens, logits)
    context, last = _step(subject, shape, kv)
    graph.run(context, last, greedy=True)
    before = _kernels.num_barriers()
    graph.run(context, last, greedy=True)
    barriers = _kernels.num_barriers() - before
    runs, whole = [], []
    for _ in range(repeats):
        start = perf_counter()
        graph.run(context, last, greedy=True)
        whole.append(perf_counter() - start)
        runs.append(graph.timed_run(context, last))
    note = f"{barriers} barriers; below: by smallest time, shares of the sum of these"
    report.add(f"{shape.words}: step", "ms", spread(whole).scaled(1e3), note=note)
    _add_kinds(report, shape, runs)


def _add_kinds(report: Report, shape: Shape, runs: list[list[tuple[str, float]]]) -> None:
    """Shares and bars are of the smallest times: a call that waited for a processor says nothing about the code."""
    calls: dict[str, list[Spread]] = {}
    for same in zip(*runs):
        calls.setdefault(same[0][0], []).append(spread([seconds for _, seconds in same]).scaled(1e3))
    times = {kind: _total(each) for kind, each in calls.items()}
    kinds = sorted(times, key=lambda kind: -times[kind].low)
    whole = sum(time.low for time in times.values())
    for kind in kinds:
        note = f"{times[kind].low / whole:.1%}, {len(calls[kind])} calls"
        report.add(f"{shape.words}: {kind}", "ms", times[kind], note=note)
    report.bars.append(Bars(shape.words, "ms", [(kind, times[kind].low) for kind in kinds]))


def _total(calls: Sequence[Spread]) -> Spread:
    """Of several calls: the sum of their medians, of their smallest and of their largest times."""
    median, low, high = (sum(getattr(call, name) for call in calls) for name in ("median", "low", "high"))
    return Spread(median, low, high, calls[0].runs)


def _caches(subject: Subject, shape: Shape) -> list[LayerKV]:
    """Caches with something in them: what was never written lies in one page of zeros, which costs no traffic."""
    layout = subject.model.kv_layout
    caches = allocate_kv(layout, _num_blocks(subject, shape), subject.block_size, kv=subject.kv)
    for cache in caches:
        for tensor in {cache.k, cache.v}:
            tensor.view(torch.uint8).fill_(0x1C)  # a small finite number in every format, as code and as scale
    return caches


def _num_blocks(subject: Subject, shape: Shape) -> int:
    """Of all slices and groups, and the null block."""
    return len(subject.model.kv_layout.groups) * shape.slices * _blocks_of(subject, shape) + 1


def _blocks_of(subject: Subject, shape: Shape) -> int:
    return -(-(shape.depth + shape.length) // subject.block_size)


def _step(subject: Subject, shape: Shape, kv: Sequence[LayerKV]) -> tuple[ForwardContext, Tensor]:
    """The step's inputs, and the rows that are sampled: each slice's last."""
    ids = torch.arange(shape.tokens, dtype=torch.int32) % subject.model.vocab_size
    positions = torch.arange(shape.depth, shape.depth + shape.length, dtype=torch.int32).repeat(shape.slices)
    starts = torch.arange(shape.slices + 1, dtype=torch.int32) * shape.length
    lens = torch.full((shape.slices,), shape.depth + shape.length, dtype=torch.int32)
    groups = [_group(subject, shape, positions, index) for index in range(len(subject.model.kv_layout.groups))]
    return ForwardContext(subject.ops, ids, positions, starts, lens, groups, kv), starts[1:] - 1


def _group(subject: Subject, shape: Shape, positions: Tensor, index: int) -> GroupIndex:
    """Blocks of its own for each slice, in rising order; block 0 is the null block."""
    each, size = _blocks_of(subject, shape), subject.block_size
    first = 1 + index * shape.slices * each
    table = torch.arange(first, first + shape.slices * each, dtype=torch.int32).view(shape.slices, each)
    owner = torch.arange(shape.slices).repeat_interleave(shape.length)
    slots = table[owner, positions.long() // size] * size + positions % size
    return GroupIndex(table, slots.to(torch.int32))

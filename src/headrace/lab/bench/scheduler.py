"""Microseconds of scheduling per step: the core alone, the whole engine turn, and a prefix lookup. No model runs.

The device is one that answers at once with ready arrays, so that what is left is the engine's own time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np

from headrace._core import Scheduler
from headrace.contract.plan import SequenceStart, StepPlan
from headrace.contract.request import Request, SamplingParams
from headrace.contract.result import StepResult
from headrace.engine.engine import Engine

from .progress import now
from .report import Curve, Report
from .scheduler_peer import BLOCK_SIZE, PROMPT_TOKENS, PeerScheduler
from .stats import Spread, spread
from .workload import draw_prompt

RUNNING = (64, 256, 1024)
MOST_RUNNING = 1 << 16  # what ``max_seqs`` may be
LOOKUP_TOKENS = 8192
STEPS = 200


@dataclass
class IdleWorker:
    """A worker port that computes nothing: every sampling slice gets the same token. ``spent_s`` is its own time."""

    spent_s: float = 0.0
    _tokens: Any = field(default_factory=lambda: np.full(1 << 16, 7, np.int32))

    def launch_forward(self, plan: StepPlan, starts: Sequence[SequenceStart]) -> StepPlan:
        del starts
        return plan

    def launch_sample(self, handle: StepPlan) -> None:
        del handle

    def collect(self, handle: StepPlan, timeout_s: float) -> StepResult:
        del timeout_s
        start = perf_counter()
        result = StepResult(handle.step, *answer(handle, self._tokens))
        self.spent_s += perf_counter() - start
        return result

    def close(self) -> None:
        """Nothing to free."""


def answer(plan: StepPlan, tokens: Any) -> tuple[Any, Any, Any]:
    """(num_valid, offsets, tokens) of a step whose slices all ran whole."""
    offsets = np.concatenate([[0], np.cumsum(plan.samples, dtype=np.int32)]).astype(np.int32)
    return np.array(plan.num_scheduled, np.int32), offsets, tokens[: offsets[-1]]


Measure = Callable[[int], float]


def bench_scheduler(running: Sequence[int] = RUNNING, repeats: int = 5, peer: PeerScheduler | None = None) -> Report:
    """``repeats`` rounds of ``STEPS`` steps; a round's figure is its median step. ``peer`` takes turns with ours."""
    settings = {"running": list(running), "steps": STEPS, "repeats": repeats, "block_size": BLOCK_SIZE}
    report = Report("scheduler", settings)
    measures: dict[str, Measure] = {"schedule + commit": core_steps, "engine turn, device excluded": engine_steps}
    if peer is not None:
        report.settings["peer"] = peer.version
        measures[f"{peer.name}: schedule + update"] = peer.step
    points: dict[str, list[tuple[float, float]]] = {name: [] for name in measures}
    for count in running:
        now(f"{count} running")
        for name, values in in_turns(measures, count, repeats).items():
            time = spread(values).scaled(1e6)
            report.add(f"{name}, {count} running", "us", time)
            points[name].append((float(count), time.median))
    for what, time in lookups(repeats, peer).items():
        report.add(what, "us", time.scaled(1e6))
    report.curves += [Curve(name, "running", "us per step", each) for name, each in points.items()]
    return report.finish()


def in_turns(measures: Mapping[str, Measure], count: int, repeats: int) -> dict[str, list[float]]:
    """Each measure ``repeats`` times, A B C A B C."""
    values: dict[str, list[float]] = {name: [] for name in measures}
    for _ in range(repeats):
        for name, measure in measures.items():
            values[name].append(measure(count))
    return values


def new_core(count: int) -> Scheduler:
    """A core with room for ``count`` sequences that all decode."""
    longest = PROMPT_TOKENS + 4 * STEPS
    num_blocks = count * -(-longest // BLOCK_SIZE) + 2
    return Scheduler(
        num_blocks=num_blocks, block_size=BLOCK_SIZE, token_budget=8192, max_seqs=count, max_model_len=longest
    )


def core_steps(count: int) -> float:
    """Median seconds of plan + commit with ``count`` decoding sequences."""
    core, tokens = new_core(count), np.full(1 << 16, 7, np.int32)
    for i in range(count):
        prompt = np.array(draw_prompt(PROMPT_TOKENS, f"scheduler {i}"), np.int32)
        core.add(i, prompt, max_tokens=4 * STEPS, ignore_eos=True)
    spent = 0.0

    def step() -> None:
        nonlocal spent
        start = perf_counter()
        plan = core.plan()
        planned = perf_counter()
        arrays = answer(plan, tokens)
        answered = perf_counter()
        core.commit(plan.step, *arrays)
        spent = planned - start + perf_counter() - answered

    return _median_step(step, lambda: spent, settled=lambda: core.num_waiting == 0)


def engine_steps(count: int) -> float:
    """Median seconds of ``Engine.tick`` with ``count`` decoding requests, less the idle worker's own time."""
    core, worker = new_core(count), IdleWorker()
    engine = Engine(core, worker, overlap=False, max_waiting=count)
    sampling = SamplingParams(max_tokens=4 * STEPS, temperature=0.0, ignore_eos=True, seed=0)
    for i in range(count):
        prompt = draw_prompt(PROMPT_TOKENS, f"scheduler {i}")
        engine.submit(Request(request_id=str(i), prompt_token_ids=prompt, sampling=sampling))
    spent = 0.0

    def step() -> None:
        nonlocal spent
        worker.spent_s = 0.0
        start = perf_counter()
        deltas = engine.tick()
        spent = perf_counter() - start - worker.spent_s
        assert all(delta.finish_reason is None for delta in deltas), "sequences end during the measurement"

    try:
        return _median_step(step, lambda: spent, settled=lambda: core.num_running == count)
    finally:
        engine.close()


def _median_step(step: Callable[[], None], spent: Callable[[], float], settled: Callable[[], bool]) -> float:
    """Runs until every sequence decodes and a little longer, then measures."""
    for _ in range(STEPS):
        step()
        if settled():
            break
    for _ in range(10):
        step()
    times = []
    for _ in range(STEPS):
        step()
        times.append(spent())
    return spread(times).median


def lookups(repeats: int, peer: PeerScheduler | None = None) -> dict[str, Spread]:
    """A prompt whose ``LOOKUP_TOKENS`` first tokens are cached waits for blocks: every plan looks it up again.

    The first plan hashes the prompt's blocks; later ones find the hashes computed.
    """
    ours, theirs = [], []
    for _ in range(repeats):
        ours.append(_lookup())
        if peer is not None:
            theirs.append(peer.lookup(draw_prompt(LOOKUP_TOKENS, "lookup")))
    what = f"prefix lookup of {LOOKUP_TOKENS} tokens, hashes computed"
    found = {
        what: spread([later for _, later in ours]),
        f"hashing {LOOKUP_TOKENS * 3 // 2} tokens and a first lookup": spread([first for first, _ in ours]),
    }
    if peer is not None:
        found[f"{peer.name}: {what}"] = spread([later for _, later in theirs])
        found[f"{peer.name}: hashing {LOOKUP_TOKENS} tokens"] = spread([first for first, _ in theirs])
    return found


def _lookup() -> tuple[float, float]:
    blocks = LOOKUP_TOKENS // BLOCK_SIZE
    core = Scheduler(
        num_blocks=2 * blocks + 8,
        block_size=BLOCK_SIZE,
        token_budget=4 * LOOKUP_TOKENS,
        max_model_len=4 * LOOKUP_TOKENS,
    )
    prefix = draw_prompt(LOOKUP_TOKENS, "lookup")
    holders = ([*prefix, 1], draw_prompt(LOOKUP_TOKENS + 1, "other"))  # they fill the pool, and stay in flight
    for seq_id, prompt in enumerate(holders):
        core.add(seq_id, np.array(prompt, np.int32), max_tokens=1, ignore_eos=True)
    assert core.plan().total_tokens == 2 * (LOOKUP_TOKENS + 1)
    waiting = prefix + draw_prompt(LOOKUP_TOKENS // 2, "tail")
    core.add(2, np.array(waiting, np.int32), max_tokens=1)
    times = []
    for _ in range(STEPS):
        start = perf_counter()
        plan = core.plan()
        times.append(perf_counter() - start)
        assert plan.step < 0, "the waiting prompt must not fit"
    return times[0], spread(times[1:]).median

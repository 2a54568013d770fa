"""Speculation, put together from the configuration: who drafts, who verifies, who decides how much."""

from __future__ import annotations

import platform
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from headrace import env
from headrace._core import StepCost
from headrace.config import EngineConfig
from headrace.contract.errors import ConfigError
from headrace.contract.layout import Layout, RecordLayout
from headrace.engine.drafting import CostWatch, Drafting
from headrace.speculation.guard import Guard
from headrace.worker.cost_curve import Curve, CurveKey, load, measure, save
from headrace.worker.head_drafter import HeadDrafter
from headrace.worker.profile import measured_runner, profiled_sizes, run_rows
from headrace.worker.runner import Runner
from headrace.worker.speculator import Speculator

from .drafters import open_drafter


@dataclass(frozen=True, slots=True)
class Speculation:
    """The worker's part and the engine's; neither without speculation."""

    speculator: Speculator | None = None
    drafting: Drafting | None = None


def most_logits(config: EngineConfig) -> int:
    """Rows of logits one step may ask for."""
    wanted, limits = config.speculation, config.scheduler
    if wanted.speculation == "none":
        return limits.max_seqs
    return max(limits.max_seqs, min(limits.max_seqs * (1 + wanted.max_drafts), limits.token_budget))


def open_speculation(config: EngineConfig, runner: Runner, model: str, num_threads: int) -> Speculation:
    """Profiles this machine if its curve for ``model`` (name and place) is not known.

    Raises ConfigError for more drafts than the model can take back.
    """
    wanted = config.speculation
    if wanted.speculation == "none":
        return Speculation()
    limit = draft_limit(runner.model.kv_layout)
    if limit is not None and wanted.max_drafts > limit:
        raise ConfigError("max_drafts", f"this model can take back {limit} drafts at most")
    drafter = open_drafter(config, runner)
    most = min(wanted.max_drafts, drafter.block) if isinstance(drafter, HeadDrafter) else wanted.max_drafts
    speculator = Speculator(drafter, most, config.cache.block_size, runner.model.vocab_size)
    if not wanted.speculation_guard:
        return Speculation(speculator, Drafting(most))
    curve = cost_curve(config, runner, CurveKey(model, machine_name(num_threads), _mode(config)))

    def publish(cost: StepCost) -> None:
        speculator.cost = cost

    def pause(paused: bool) -> None:
        speculator.paused = paused

    costs = CostWatch(curve.sizes, curve.times_ms, publish)
    return Speculation(speculator, Drafting(most, costs, Guard(), pause))


def draft_limit(layout: Layout) -> int | None:
    """Drafts of a sequence that the model can take back; None: as many as there are."""
    return layout.most_drafts if isinstance(layout, RecordLayout) else None


def machine_name(num_threads: int, cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """What a curve depends on: the processor, the instruction set and the threads."""
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{models[0] if models else platform.machine()}, {env.isa() or 'best'}, {num_threads} threads"


def _mode(config: EngineConfig) -> str:
    return f"{config.model.backend} {config.model.dtype} {config.cache.kv_dtype} graphs {config.runtime.graphs}"


def cost_curve(config: EngineConfig, runner: Runner, key: CurveKey) -> Curve:
    """From disk, or measured now and kept."""
    most = min(most_logits(config), config.scheduler.token_budget)
    sizes, folder = profiled_sizes(most), env.cache_dir() / "cost"
    lifetime_s = config.speculation.cost_lifetime_s
    curve = load(folder, key, sizes, lifetime_s=lifetime_s, now=time.time())
    if curve is None:
        measured = measured_runner(runner, config.cache.block_size)
        run = partial(run_rows, measured, block_size=config.cache.block_size)
        curve = measure(key, sizes, run, repeats=3)
        save(folder, curve)
        if runner.graphs is not None:
            runner.graphs.modes.clear()  # these were no steps of the engine
    return curve

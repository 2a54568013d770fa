"""The composition root: from a configuration to a running engine. The only file that knows every actor."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from headrace import env
from headrace._core import Scheduler
from headrace.config import EngineConfig, kv_format
from headrace.contract.errors import ConfigError
from headrace.contract.layout import Layout
from headrace.contract.picture import Eyes
from headrace.contract.plan import Role
from headrace.contract.stats import StepCost
from headrace.engine.engine import Engine
from headrace.engine.hand_over import Relay
from headrace.engine.roles import RoleConfig, make_cadence
from headrace.engine.roles import core_settings as role_settings
from headrace.kernels.ops import Ops
from headrace.kernels.placement import Placement
from headrace.kernels.resolve import resolve_ops
from headrace.kernels.runtime import arithmetic, caller_binding, configure, usable_processors
from headrace.kv.connector import StoreConnector
from headrace.kv.keys import GRAIN
from headrace.models.context import Model, SharesExperts
from headrace.models.registry import Share, architecture_of, load_model, require_memory
from headrace.models.sources import ModelSource, resolve_model
from headrace.models.weights import open_checkpoint
from headrace.obs.launch_guard import LaunchGuard
from headrace.obs.recorder import Recorder
from headrace.parallel.collectives import Collective
from headrace.worker.graphs import Graphs, settle_policy
from headrace.worker.kv_tensors import allocate_kv
from headrace.worker.memory import PoolSize, free_memory_bytes, size_pool
from headrace.worker.runner import Runner
from headrace.worker.worker import Worker

from .determinism import require_fixed_context, settle
from .drafters import check_drafter, keep_draft_records
from .facts import eyes_of
from .grammar_launch import open_grammars
from .kv_launch import check_kv_dtype, check_store, open_connector, store_place
from .pictures import check_place_holder
from .seats import ExpertSeat
from .skipping import skip_rows, without_reuse
from .speculation import most_logits, open_speculation
from .tensor_team import Team, opened_team
from .text.engram_map import engram_map
from .text.tokenizer import Tokenizer, load_tokenizer

DUMMY_SEED = 0

Progress = Callable[[str, int, int], None]
"""Called as (what, done, total) while a model is pulled ("pull", bytes) and loaded ("load", tensors)."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Shared by every engine of a process; nothing in it changes."""

    source: ModelSource
    tokenizer: Tokenizer | None
    ops: Ops
    model: Model
    placement: Placement
    num_threads: int


@dataclass(frozen=True, slots=True)
class Launched:
    """An engine and what its front needs to know."""

    engine: Engine
    tokenizer: Tokenizer | None
    model_name: str
    vocab_size: int
    max_model_len: int
    pool: PoolSize
    notes: tuple[str, ...] = ()
    """What the deterministic mode changed, in words."""
    step_cost: StepCost | None = None
    eyes: Eyes | None = None
    """What pictures must be like; None for a model that reads text only."""


def launch(
    config: EngineConfig,
    *,
    progress: Progress | None = None,
    meet: Callable[[], Collective] | None = None,
    experts: ExpertSeat | None = None,
) -> Launched:
    """Resolves, loads, sizes and connects. Raises ConfigError, ModelError or PullError before serving anything.

    ``meet`` gives a rank of a voted group what it votes over; called last, when this rank is ready to. ``experts``:
    it holds some of the model's experts only.
    """
    if config.scheduler.discipline == "split":
        raise ConfigError("discipline", "split makes two engines, not one: LLM, AsyncLLM and serve take it")
    settled = settle(config)
    with opened_team(without_reuse(settled.config)) as (team, config):
        share = team.share if team else experts.share if experts else None
        parts = load_parts(config, progress, share)
        pool, max_model_len = plan_memory(config, parts.model)
        if experts is not None:
            assert isinstance(parts.model, SharesExperts), "loading with a share has seen to it"
            parts.model.share_experts(experts.meet(), experts.rebalance)
        if team is not None:
            team.begin(parts.model, pool.num_blocks)
        engine = build_engine(config, parts, pool, max_model_len, role_of(config), meet=meet, team=team)
    name, size, cost = parts.source.name, parts.model.vocab_size, getattr(parts.model, "step_cost", None)
    eyes = eyes_of(parts.model)
    return Launched(engine, parts.tokenizer, name, size, max_model_len, pool, settled.words, cost, eyes)


def load_parts(config: EngineConfig, progress: Progress | None = None, share: Share | None = None) -> Parts:
    """What engines are built from: the model with its weights (``share``: a rank's part of it only), the ops it runs
    on, its tokenizer."""
    check_store(config)
    source = resolve_model(config.model.model, progress=named(progress, "pull"), offline=config.model.offline)
    tokenizer = open_tokenizer(source)
    num_threads = config.runtime.num_threads or env.num_threads() or usable_processors()
    placement = configure(config.model.backend, num_threads, env.isa(), config.runtime.pinning)
    ops = resolve_ops(config.model.backend, strict=config.model.strict)
    checkpoint = open_checkpoint(source.path, dummy_seed=DUMMY_SEED if source.dummy else None)
    exact = config.model.dtype == "float32"
    require_memory(checkpoint, free_memory_bytes(), exact=exact, share=share)
    check_kv_dtype(config, architecture_of(checkpoint))
    check_drafter(config, checkpoint)
    loading = named(progress, "load")
    model = load_model(checkpoint, ops, progress=loading, exact=exact, token_map=token_map_of(tokenizer), share=share)
    _check_vocabulary(model, tokenizer, source)
    check_place_holder(eyes_of(model), tokenizer)
    skip_rows(config, model)
    keep_draft_records(config, model)
    return Parts(source, tokenizer, ops, model, placement, num_threads)


def build_engine(
    config: EngineConfig,
    parts: Parts,
    pool: PoolSize,
    max_model_len: int,
    role: RoleConfig,
    *,
    meet: Callable[[], Collective] | None = None,
    team: Team | None = None,
    relay: Callable[[Worker, Recorder | None, StoreConnector | None], Relay] | None = None,
    recalls: bool = False,
) -> Engine:
    """One engine with a KV pool of its own. ``relay`` makes its end of a hand-off. ``recalls``: a completion engine
    with a store, from which it takes what did not come with a sequence."""
    model, ops, tokenizer = parts.model, parts.ops, parts.tokenizer
    computes_prompts = role.kind != Role.COMPLETION
    place = store_place(config, votes=meet is not None) if computes_prompts or recalls else None
    seal = GRAIN if place and computes_prompts else 0
    core = build_core(config, model.kv_layout, pool.num_blocks, max_model_len, role, seal_tokens=seal)
    kv = allocate_kv(model.kv_layout, pool.num_blocks, config.cache.block_size, kv=kv_format(config))
    limits = config.scheduler
    policy = settle_policy(config.runtime.graphs if model.capturable else "none", ops.name)
    graphs = Graphs(model, ops, kv, policy, (limits.token_budget,), most_logits(config))
    runner = Runner(model, ops, kv, graphs, team.followers if team else None, team.close if team else None)
    guard = open_guard(config)
    speculation = open_speculation(config, runner, f"{parts.source.name} {parts.source.path}", parts.num_threads)
    with ExitStack() as undo:  # what fails from here on leaves no thread, no process and no file open
        bound = caller_binding(parts.placement)
        worker = Worker(runner, config.cache.block_size, guard=guard, enter=bound, speculator=speculation.speculator)
        undo.callback(worker.close)
        recorder = open_recorder(config, model.kv_layout, pool.num_blocks, max_model_len, role)
        if recorder is not None:
            undo.callback(recorder.close)
        connector = None
        if place is not None:
            connector = open_connector(config, place, parts.source, model, kv, worker, arithmetic(ops.name))
            undo.callback(connector.close)
        engine = Engine(
            core,
            worker,
            cadence=make_cadence(role, meet() if meet is not None else None),
            overlap=config.runtime.overlap and role.overlap,
            max_waiting=config.scheduler.max_waiting,
            step_timeout_s=config.runtime.step_timeout_s,
            observer=recorder,
            graph_steps=lambda: {mode.name.lower(): count for mode, count in list(graphs.modes.items())},
            grammars=open_grammars(config, tokenizer, model.vocab_size),
            guard=guard,
            drafting=speculation.drafting,
            relay=None if relay is None else relay(worker, recorder, connector),
            connector=connector,
            expert_load=model.expert_load if isinstance(model, SharesExperts) else None,
            shares_open_blocks=not model.kv_layout.rewrites,
        )
        undo.pop_all()
    return engine


def open_guard(config: EngineConfig) -> LaunchGuard:
    """One guard for the loop and its worker; off unless the configuration or the environment turns it on."""
    wanted = config.runtime.overlap_checks
    return LaunchGuard(env.overlap_checks() if wanted is None else wanted)


def role_of(config: EngineConfig) -> RoleConfig:
    """What the engine does, by its discipline."""
    limits = config.scheduler
    if limits.discipline == "mixed":
        return RoleConfig()
    return RoleConfig("normal", limits.all_interval, limits.any_interval, limits.kv_limit)


def token_map_of(tokenizer: Tokenizer | None) -> Callable[[], Tensor] | None:
    """What models with Engram hash; None without a tokenizer. Costs nothing until it is called."""
    return None if tokenizer is None else lambda: torch.from_numpy(engram_map(tokenizer))


def open_tokenizer(source: ModelSource) -> Tokenizer | None:
    """The source's tokenizer; None when it has none (prompts must then be token ids)."""
    return None if source.tokenizer_path is None else load_tokenizer(source.tokenizer_path)


def named(progress: Progress | None, what: str) -> Callable[[int, int], None] | None:
    """The part of ``progress`` that is about one stage."""
    if progress is None:
        return None
    return lambda done, total: progress(what, done, total)


def _check_vocabulary(model: Model, tokenizer: Tokenizer | None, source: ModelSource) -> None:
    if tokenizer is not None and tokenizer.vocab_size > model.vocab_size:
        raise ConfigError(
            "model",
            f"{source.name}: the tokenizer has {tokenizer.vocab_size} ids, the weights {model.vocab_size}",
        )


def plan_memory(config: EngineConfig, model: Model) -> tuple[PoolSize, int]:
    """The pool, and the longest sequence: what was asked for, or what model and pool allow."""
    asked = config.model.max_model_len
    if asked is not None and asked > model.max_positions:
        raise ConfigError("max_model_len", f"{asked} exceeds the model's {model.max_positions} positions")
    wanted = asked or model.max_positions
    pool = size_pool(model.kv_layout, config, wanted, free_memory_bytes())
    capacity = build_core(config, model.kv_layout, pool.num_blocks, wanted, RoleConfig()).capacity_tokens
    require_fixed_context(config, wanted, capacity, pool.words)
    if asked is not None and asked > capacity:
        raise ConfigError(
            "max_model_len",
            f"a sequence of {asked} tokens does not fit: {pool.words}. Raise kv_memory or lower it",
        )
    return pool, min(wanted, capacity)


def core_settings(
    config: EngineConfig, layout: Layout, num_blocks: int, max_model_len: int, role: RoleConfig
) -> dict[str, object]:
    """The scheduler's constructor arguments, plain values: also the head of a flight recording."""
    limits = config.scheduler
    return {
        "num_blocks": num_blocks,
        "block_size": config.cache.block_size,
        "groups": [(int(group.kind), group.window) for group in layout.groups],
        "prefix_caching": config.cache.prefix_caching,
        "token_budget": limits.token_budget,
        "max_seqs": limits.max_seqs,
        "max_model_len": max_model_len,
        "long_prefill_threshold": limits.long_prefill_threshold,
        "watermark_blocks": int(config.cache.watermark * num_blocks),
        "chunked_prefill": limits.chunked_prefill,
        "full_sequence_must_fit": limits.full_sequence_must_fit,
        "priority": limits.priority,
        **role_settings(role),
    }


def build_core(
    config: EngineConfig,
    layout: Layout,
    num_blocks: int,
    max_model_len: int,
    role: RoleConfig,
    *,
    seal_tokens: int = 0,
) -> Scheduler:
    """``seal_tokens``: how much KV a store wants to hear of at once; changes no plan, so no recording has it."""
    settings = core_settings(config, layout, num_blocks, max_model_len, role)
    return Scheduler(**settings, seal_tokens=seal_tokens)  # type: ignore[arg-type]


def open_recorder(
    config: EngineConfig, layout: Layout, num_blocks: int, max_model_len: int, role: RoleConfig
) -> Recorder | None:
    """A flight recorder writing to the configured file, if any."""
    if config.runtime.record is None:
        return None
    return Recorder.open(Path(config.runtime.record), core_settings(config, layout, num_blocks, max_model_len, role))

"""The composition root: from a configuration to a running engine. The only file that knows every actor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headrace import env
from headrace._core import Scheduler
from headrace.config import EngineConfig, narrow_kv
from headrace.contract.errors import ConfigError
from headrace.contract.layout import KVLayout
from headrace.engine.engine import Engine
from headrace.grammar.backend import Vocabulary
from headrace.grammar.compiler import GrammarPool
from headrace.kernels.resolve import resolve_ops
from headrace.kernels.runtime import arithmetic, configure, usable_processors
from headrace.kv.keys import GRAIN
from headrace.models.context import Model
from headrace.models.registry import load_model, require_memory
from headrace.models.sources import ModelSource, resolve_model
from headrace.models.weights import open_checkpoint
from headrace.obs.recorder import Recorder
from headrace.worker.graphs import Graphs, settle_policy
from headrace.worker.kv_tensors import allocate_kv
from headrace.worker.memory import PoolSize, free_memory_bytes, size_pool
from headrace.worker.runner import Runner
from headrace.worker.worker import Worker

from .kv_launch import open_connector, store_place
from .text.tokenizer import Tokenizer, load_tokenizer

DUMMY_SEED = 0

Progress = Callable[[str, int, int], None]
"""Called as (what, done, total) while a model is pulled ("pull", bytes) and loaded ("load", tensors)."""


@dataclass(frozen=True, slots=True)
class Launched:
    """An engine and what its front needs to know."""

    engine: Engine
    tokenizer: Tokenizer | None
    model_name: str
    vocab_size: int
    max_model_len: int
    pool: PoolSize


def launch(config: EngineConfig, *, progress: Progress | None = None) -> Launched:
    """Resolves, loads, sizes and connects. Raises ConfigError, ModelError or PullError before serving anything."""
    source = resolve_model(config.model.model, progress=_named(progress, "pull"), offline=config.model.offline)
    tokenizer = open_tokenizer(source)
    num_threads = config.runtime.num_threads or env.num_threads() or usable_processors()
    configure(config.model.backend, num_threads, env.isa())
    ops = resolve_ops(config.model.backend, strict=config.model.strict)
    checkpoint = open_checkpoint(source.path, dummy_seed=DUMMY_SEED if source.dummy else None)
    exact = config.model.dtype == "float32"
    require_memory(checkpoint, free_memory_bytes(), exact=exact)
    model = load_model(checkpoint, ops, progress=_named(progress, "load"), exact=exact)
    _check_vocabulary(model, tokenizer, source)
    pool, max_model_len = plan_memory(config, model)
    place = store_place(config)
    seal = GRAIN if place else 0
    core = build_core(config, model.kv_layout, pool.num_blocks, max_model_len, seal_tokens=seal)
    kv = allocate_kv(model.kv_layout, pool.num_blocks, config.cache.block_size, narrow=narrow_kv(config))
    limits = config.scheduler
    graphs = Graphs(
        model, ops, kv, settle_policy(config.runtime.graphs, ops.name), (limits.token_budget,), limits.max_seqs
    )
    runner = Runner(model, ops, kv, graphs)
    worker = Worker(runner, config.cache.block_size)
    what = arithmetic(ops.name)
    connector = open_connector(config, place, source, model.kv_layout, kv, worker, what) if place else None
    engine = Engine(
        core,
        worker,
        overlap=config.runtime.overlap,
        max_waiting=config.scheduler.max_waiting,
        step_timeout_s=config.runtime.step_timeout_s,
        observer=open_recorder(config, model.kv_layout, pool.num_blocks, max_model_len),
        graph_steps=lambda: {mode.name.lower(): count for mode, count in list(graphs.modes.items())},
        grammars=open_grammars(config, tokenizer, model.vocab_size),
        connector=connector,
    )
    return Launched(engine, tokenizer, source.name, model.vocab_size, max_model_len, pool)


def open_grammars(config: EngineConfig, tokenizer: Tokenizer | None, vocab_size: int) -> GrammarPool | None:
    """Where constraints compile; None without text to constrain. Costs nothing until the first one comes."""
    if tokenizer is None:
        return None
    limits = config.grammar
    return GrammarPool(
        lambda: vocabulary(tokenizer, vocab_size),
        threads=limits.grammar_threads,
        timeout_s=limits.grammar_timeout_s,
        cache_bytes=limits.grammar_cache,
    )


def vocabulary(tokenizer: Tokenizer, vocab_size: int) -> Vocabulary:
    """Bytes of every id of the model; none for control tokens, which no text may contain."""
    ids = range(vocab_size)
    return Vocabulary([tokenizer.visible_bytes(i, skip_special=True) for i in ids], tokenizer.eos_ids)


def open_tokenizer(source: ModelSource) -> Tokenizer | None:
    """The source's tokenizer; None when it has none (prompts must then be token ids)."""
    return None if source.tokenizer_path is None else load_tokenizer(source.tokenizer_path)


def _named(progress: Progress | None, what: str) -> Callable[[int, int], None] | None:
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
    capacity = build_core(config, model.kv_layout, pool.num_blocks, wanted).capacity_tokens
    if asked is not None and asked > capacity:
        raise ConfigError(
            "max_model_len",
            f"a sequence of {asked} tokens does not fit: {pool.words}. Raise kv_memory or lower it",
        )
    return pool, min(wanted, capacity)


def core_settings(config: EngineConfig, layout: KVLayout, num_blocks: int, max_model_len: int) -> dict[str, object]:
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
    }


def build_core(
    config: EngineConfig, layout: KVLayout, num_blocks: int, max_model_len: int, *, seal_tokens: int = 0
) -> Scheduler:
    """``seal_tokens``: how much KV a store wants to hear of at once; changes no plan, so no recording has it."""
    settings = core_settings(config, layout, num_blocks, max_model_len)
    return Scheduler(**settings, seal_tokens=seal_tokens)  # type: ignore[arg-type]


def open_recorder(config: EngineConfig, layout: KVLayout, num_blocks: int, max_model_len: int) -> Recorder | None:
    """A flight recorder writing to the configured file, if any."""
    if config.runtime.record is None:
        return None
    return Recorder.open(Path(config.runtime.record), core_settings(config, layout, num_blocks, max_model_len))

"""Which drafter a configuration asks for, and what a model must be to draft for another."""

from __future__ import annotations

from headrace.config import EngineConfig, SpeculationConfig, kv_format
from headrace.contract.errors import ConfigError
from headrace.contract.layout import KVKind, Layout
from headrace.models.context import EarlyExit, HasDraftHeads, Model
from headrace.models.deepseek_v41.config import ARCHITECTURE as V41
from headrace.models.registry import architecture_of, load_model, require_memory
from headrace.models.sources import ModelSource, resolve_model
from headrace.models.weights import open_checkpoint
from headrace.models.weights.checkpoint import Checkpoint
from headrace.speculation.drafter import Drafter
from headrace.speculation.ngram import NgramDrafter
from headrace.speculation.suffix import SuffixDrafter
from headrace.worker.head_drafter import HeadDrafter
from headrace.worker.kv_tensors import allocate_kv
from headrace.worker.memory import free_memory_bytes
from headrace.worker.model_drafter import ModelDrafter
from headrace.worker.runner import Runner

NO_HEADS = (
    "draft_heads needs a model with draft heads of its own, such as v41-mini (--model v41-mini); this one has none: "
    "ngram goes with every model"
)


def open_drafter(config: EngineConfig, runner: Runner) -> Drafter:
    """Raises ConfigError where the model cannot be drafted for in this way."""
    wanted = config.speculation
    if wanted.speculation == "draft_model":
        return _draft_model(config, runner)
    if wanted.speculation == "draft_heads":
        return _heads(wanted, runner)
    if wanted.speculation == "self":
        return _first_layers(wanted, runner, config.cache.block_size)
    if wanted.speculation == "suffix":
        return SuffixDrafter(wanted.min_match, wanted.suffix_memory)
    return NgramDrafter(wanted.min_match, wanted.max_match)


def check_drafter(config: EngineConfig, target: Checkpoint) -> None:
    """Before any weight is loaded: raises ConfigError for what headers alone tell cannot draft."""
    wanted = config.speculation
    if wanted.speculation == "draft_heads" and architecture_of(target) != V41:
        raise ConfigError("speculation", NO_HEADS)
    if wanted.speculation == "draft_model":
        source, draft = _open_draft(config)
        if architecture_of(draft) == V41:
            raise ConfigError("draft_model", f"{source.name} cannot draft for another model: it keeps records, no keys")
        mine, its = (checkpoint.config.get("vocab_size") for checkpoint in (target, draft))
        if isinstance(mine, int) and isinstance(its, int):  # else the loader says what is wrong with it
            _check_vocabularies(source.name, its, mine)


def _open_draft(config: EngineConfig) -> tuple[ModelSource, Checkpoint]:
    assert config.speculation.draft_model is not None, "checked with the configuration"
    source = resolve_model(config.speculation.draft_model, offline=config.model.offline)
    return source, open_checkpoint(source.path, dummy_seed=0 if source.dummy else None)


def _check_vocabularies(name: str, draft: int, target: int) -> None:
    if draft != target:
        words = f"{name} has {draft} ids, the model {target}: both must speak the same vocabulary"
        raise ConfigError("draft_model", words)


def keep_draft_records(config: EngineConfig, model: Model) -> None:
    """Before the pool is made: a model that will draft by its own heads keeps what they read. Raises ConfigError for a
    model without such heads."""
    if config.speculation.speculation != "draft_heads":
        return
    if not isinstance(model, HasDraftHeads):
        raise ConfigError("speculation", NO_HEADS)
    model.keep_draft_records()


def _heads(wanted: SpeculationConfig, runner: Runner) -> Drafter:
    assert isinstance(runner.model, HasDraftHeads), "checked where its records were asked for"
    rejection = wanted.acceptance == "rejection"
    return HeadDrafter(runner.model.draft_heads(), runner.ops, runner.kv, rejection=rejection)


def _first_layers(wanted: SpeculationConfig, runner: Runner, block_size: int) -> Drafter:
    if not isinstance(runner.model, EarlyExit):
        raise ConfigError("speculation", "this model's first layers cannot run alone")
    try:
        first = runner.model.first_layers(wanted.draft_layers)
    except ValueError as error:
        raise ConfigError("draft_layers", str(error)) from error
    return ModelDrafter(
        first, runner.ops, runner.kv, block_size, shares_kv=True, rejection=wanted.acceptance == "rejection"
    )


def _draft_model(config: EngineConfig, runner: Runner) -> Drafter:
    """The smaller model, and KV of its own: as many blocks as the target's pool, in memory on top of it."""
    source, checkpoint = _open_draft(config)
    exact = config.model.dtype == "float32"
    require_memory(checkpoint, free_memory_bytes(), exact=exact)
    model = load_model(checkpoint, runner.ops, exact=exact)
    _check_vocabularies(source.name, model.vocab_size, runner.model.vocab_size)
    if any(group.kind != KVKind.FULL for group in model.kv_layout.groups):
        raise ConfigError("draft_model", f"{source.name} has sliding windows: its keys would need tables of their own")
    num_blocks, block_size = len(runner.kv[0].k), config.cache.block_size
    kv = allocate_kv(model.kv_layout, num_blocks, block_size, kv=kv_format(config))
    group = full_group(runner.model.kv_layout)
    return ModelDrafter(
        model, runner.ops, kv, block_size, group=group, rejection=config.speculation.acceptance == "rejection"
    )


def full_group(layout: Layout) -> int:
    """The target's group whose tables reach from the first token to the last."""
    for number, group in enumerate(layout.groups):
        if group.kind == KVKind.FULL:
            return number
    raise ConfigError("draft_model", "the model forgets old blocks in every layer: a draft model needs them all")

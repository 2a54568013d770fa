"""Prompts of which a model skips rows: what that excludes, and how a model is told. ``config_checks`` comes first."""

from __future__ import annotations

from dataclasses import replace

from headrace.config import EngineConfig
from headrace.contract.errors import ConfigError
from headrace.models.context import Model, SkipsRows


def without_reuse(config: EngineConfig) -> EngineConfig:
    """Skipped rows leave no keys in some layers: a prompt that began alike would find holes."""
    if config.model.prefill_keep is None:
        return config
    return replace(config, cache=replace(config.cache, prefix_caching=False, kv_store="off"))


def skip_rows(config: EngineConfig, model: Model) -> None:
    """Before the pool is made. Raises ConfigError for a model that computes every row, and for a number too small."""
    keep = config.model.prefill_keep
    if keep is None:
        return
    if not isinstance(model, SkipsRows):
        raise ConfigError("prefill_keep", "this model computes every row of a prompt in every layer")
    model.skip_rows(keep)

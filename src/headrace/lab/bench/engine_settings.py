"""With which settings a benchmark's engine ran, for the record. One place, so that no benchmark forgets one.

Says what is in effect, not only what was asked for; never how long anything took.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any

from headrace import _kernels, env
from headrace.config import EngineConfig, kv_format
from headrace.contract.errors import ConfigError
from headrace.kernels.runtime import usable_processors


def threads_of(config: EngineConfig) -> int:
    """Kernel threads of all engines together."""
    return config.runtime.num_threads or env.num_threads() or usable_processors()


def isa_of(config: EngineConfig) -> str:
    """The kernels' instruction set; ``torch`` where they do not run."""
    return env.isa() or _kernels.isa() if config.model.backend == "cpu" else "torch"


def changed_settings(config: EngineConfig) -> dict[str, Any]:
    """Every setting that is not the default, by its flat name."""
    usual = EngineConfig()
    changed: dict[str, Any] = {}
    for section in dataclasses.fields(config):
        ours, theirs = getattr(config, section.name), getattr(usual, section.name)
        values = {f.name: getattr(ours, f.name) for f in dataclasses.fields(ours)}
        changed |= {name: value for name, value in values.items() if value != getattr(theirs, name)}
    return changed


def engine_settings(config: EngineConfig) -> dict[str, Any]:
    """What a figure depends on whether set or not, then whatever else was set."""
    settings = {
        "model": config.model.model,
        "dtype": config.model.dtype,
        "kv_dtype": kv_format(config),
        "backend": config.model.backend,
        "isa": isa_of(config),
        "num_threads": threads_of(config),
        "graphs": config.runtime.graphs,
        "overlap": config.runtime.overlap,
    }
    others = {name: value for name, value in changed_settings(config).items() if name not in settings}
    return settings | others


def refuse_others(config: EngineConfig, honoured: Collection[str], reason: str) -> None:
    """Raises ConfigError for a setting that was given and would be ignored."""
    for name in changed_settings(config):
        if name not in honoured:
            raise ConfigError(name, reason)

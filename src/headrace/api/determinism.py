"""The deterministic mode: settings that would break its promises are put right or refused, each with its reason.

What is promised, and what is not, is in docs/determinism.md. Most of it holds without the mode as well: kernels and
scheduler are batch invariant anyway. The mode is what makes it an error to lose that. Pure: changes nothing but the
configuration it is given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from headrace.config import EngineConfig
from headrace.contract.errors import ConfigError


class Rule(NamedTuple):
    """``mend`` None: a configuration that ``breaks`` is refused. ``reason`` is told either way."""

    field: str
    breaks: Callable[[EngineConfig], bool]
    reason: str
    mend: Callable[[EngineConfig], EngineConfig] | None = None


RULES: tuple[Rule, ...] = (
    Rule(
        "backend",
        lambda config: config.model.backend != "cpu",
        "only the cpu backend computes a row the same in every batch; the reference is held to tolerances",
    ),
    Rule(
        "strict",
        lambda config: not config.model.strict,
        "an op that fell back to the reference would depend on the batch",
        lambda config: replace(config, model=replace(config.model, strict=True)),
    ),
    Rule(
        "acceptance",
        lambda config: config.speculation.speculation != "none" and config.speculation.acceptance != "exact",
        "with rejection sampling a token depends on how many drafts were verified, and so on the neighbours",
        lambda config: replace(config, speculation=replace(config.speculation, acceptance="exact")),
    ),
    Rule(
        "prefill_keep",
        lambda config: config.model.prefill_keep is not None,
        "which rows are skipped depends on how long a sequence is when it is computed again",
    ),
)
"""Whoever adds a setting that results may depend on beyond (model, dtype, request) adds a rule."""


@dataclass(frozen=True, slots=True)
class Settled:
    """``words``: what was changed and why, for people. Empty when the mode is off or nothing had to change."""

    config: EngineConfig
    words: tuple[str, ...] = ()


def settle(config: EngineConfig) -> Settled:
    """Applies the rules when the mode is on. Raises ConfigError naming the setting and why it cannot stay."""
    if not config.runtime.deterministic:
        return Settled(config)
    words = []
    for rule in RULES:
        if not rule.breaks(config):
            continue
        if rule.mend is None:
            raise ConfigError(rule.field, f"deterministic refuses it: {rule.reason}")
        config = rule.mend(config)
        words.append(f"deterministic sets {rule.field}: {rule.reason}")
    return Settled(config, tuple(words))


def require_fixed_context(config: EngineConfig, wanted: int, capacity: int, pool: str) -> None:
    """``wanted`` and ``capacity`` in tokens. Without the mode the context shrinks to what the pool can hold.

    With it that is refused: the pool follows the memory that happens to be free, and how long an answer may become
    would follow the pool. Raises ConfigError.
    """
    if config.runtime.deterministic and wanted > capacity:
        raise ConfigError(
            "max_model_len",
            f"deterministic refuses a context that depends on free memory: {wanted} tokens do not fit ({pool}). "
            f"Give max_model_len (at most {capacity} here) or more kv_memory",
        )

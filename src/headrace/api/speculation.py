"""Speculation, put together from the configuration: who drafts, who verifies, who decides how much."""

from __future__ import annotations

from headrace.config import EngineConfig
from headrace.engine.drafting import Drafting
from headrace.speculation.drafter import Drafter
from headrace.speculation.ngram import NgramDrafter
from headrace.worker.speculator import Speculator


def most_logits(config: EngineConfig) -> int:
    """Rows of logits one step may ask for."""
    wanted, limits = config.speculation, config.scheduler
    if wanted.speculation == "none":
        return limits.max_seqs
    return min(limits.max_seqs * (1 + wanted.max_drafts), limits.token_budget)


def open_speculator(config: EngineConfig) -> Speculator | None:
    """The worker's part; None without speculation."""
    wanted = config.speculation
    if wanted.speculation == "none":
        return None
    return Speculator(_open_drafter(config), wanted.max_drafts, config.cache.block_size)


def open_drafting(config: EngineConfig) -> Drafting | None:
    """The engine's part; None without speculation."""
    wanted = config.speculation
    return None if wanted.speculation == "none" else Drafting(wanted.max_drafts)


def _open_drafter(config: EngineConfig) -> Drafter:
    return NgramDrafter(config.speculation.min_match, config.speculation.max_match)

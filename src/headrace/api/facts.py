"""What a front must know of engines that were built for it, as plain values: they may live in another process."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.contract.picture import Eyes
from headrace.models.context import HasEyes, Model
from headrace.worker.memory import PoolSize

if TYPE_CHECKING:
    from .launch import Parts


def eyes_of(model: Model) -> Eyes | None:
    """What pictures must be like; None for a model that reads text only."""
    return model.eyes if isinstance(model, HasEyes) else None


def facts_of_parts(parts: Parts, pool: PoolSize, max_model_len: int) -> dict[str, Any]:
    """Of engines that are built from these parts."""
    name, size = parts.source.name, parts.model.vocab_size
    facts: dict[str, Any] = {"vocab_size": size, "max_model_len": max_model_len, "model_name": name}
    if (cost := getattr(parts.model, "step_cost", None)) is not None:
        facts["step_cost"] = msgspec.to_builtins(cost)
    eyes = eyes_of(parts.model)
    return facts | {"pool": asdict(pool), "eyes": None if eyes is None else asdict(eyes)}

"""A rank's place among those that share a model's experts: what it holds, and how it meets the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.parallel.eplb.balancer import ExpertShare
from headrace.parallel.eplb.stats import RebalanceConfig
from headrace.parallel.exchange import Exchange


@dataclass(frozen=True, slots=True)
class ExpertSeat:
    """``rebalance`` None: experts stay where they begin. ``meet`` comes last, when this rank is ready to."""

    share: ExpertShare
    rebalance: RebalanceConfig | None
    meet: Callable[[], Exchange]

"""Roles: what an engine does, as configuration, and what each role demands of the scheduler and the loop.

UNIFIED is the token-budget discipline. NORMAL plans prompts and decoding apart and does both; PROMPT and COMPLETION do
one of them, and sequences are handed over between the two. Reads nothing but its configuration.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.contract.errors import ConfigError
from headrace.contract.plan import Ignored, Role, StepKind
from headrace.parallel.collectives import Collective

from .cadence import Cadence, Unified
from .phase_voted import OneKind, PhaseVoted

_IGNORED = {
    Ignored.TOO_LONG: "the prompt leaves no room to generate within the context",
    Ignored.NEVER_FITS: "no step of this engine, or not even its empty KV pool, can take the sequence",
    Ignored.PREEMPTED: "it had to give way to others, and this engine does not recompute",
}


@dataclass(frozen=True, slots=True)
class RoleConfig:
    """The knobs of a role. Those below ``role`` are for engines that plan prompts and decoding apart."""

    role: str = "unified"
    """``unified``, ``normal``, ``prompt`` or ``completion``."""
    all_interval: int = 70
    """Decode steps between two ALL points: there a prompt step is run if every rank wants one."""
    any_interval: int = 100
    """Decode steps between two ANY points: there it is run if one rank wants it. Bounds an isolated rank's wait."""
    kv_limit: float = 0.9
    """Share of the KV pool in use above which a rank wants no prompt step."""
    cp_size: int = 1
    """Context-parallel ranks; prompt slices are padded to multiples of twice this."""
    min_slice: int = 1
    """Least prefill slice worth scheduling (drafts + 1)."""
    max_sum_keys: int = 0
    """Total key length of one prompt step; 0: no limit."""
    stop_preempted: bool | None = None
    """End a request that has to give way instead of recomputing it. None: what the role needs."""
    prefill_cost: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Nanoseconds of a prompt step: fixed, per token, and per pair of a token and a key before it."""
    time_budget_ns: int = 0
    """Predicted time of one prompt step; the least over the group counts. 0: no limit."""

    @property
    def kind(self) -> Role:
        """Raises ConfigError for a role that does not exist."""
        try:
            return Role[self.role.upper()]
        except KeyError:
            raise ConfigError("role", f"must be unified, normal, prompt or completion, not {self.role!r}") from None

    @property
    def overlap(self) -> bool:
        """Whether the loop overlaps unless told otherwise: prompt engines finish their steps in place."""
        return self.kind != Role.PROMPT


def _require(condition: bool, field: str, reason: str) -> None:
    if not condition:
        raise ConfigError(field, reason)


def check(config: RoleConfig) -> None:
    """Refuses what cannot work. Raises ConfigError naming the knob; the scheduler checks its own limits again."""
    role = config.kind
    _require(config.all_interval >= 1, "all_interval", "must be at least 1")
    _require(config.any_interval >= 1, "any_interval", "must be at least 1")
    _require(0 < config.kv_limit <= 1, "kv_limit", "must lie between 0 and 1")
    _require(config.time_budget_ns >= 0, "time_budget_ns", "must not be negative")
    _require(
        not (role == Role.COMPLETION and config.stop_preempted is False),
        "stop_preempted",
        "a COMPLETION engine cannot recompute a request that had to give way: it must stop it",
    )
    timed = config.time_budget_ns > 0
    _require(not timed or any(config.prefill_cost), "prefill_cost", "a time budget needs to know what prefill costs")


def core_settings(config: RoleConfig) -> dict[str, Any]:
    """The scheduler's constructor arguments that follow from the role; empty for UNIFIED. Raises ConfigError."""
    check(config)
    role = config.kind
    if role == Role.UNIFIED:
        return {}
    stop = config.stop_preempted if config.stop_preempted is not None else role == Role.COMPLETION
    return {
        "role": int(role),
        "cp_size": config.cp_size,
        "min_slice": config.min_slice,
        "max_sum_keys": config.max_sum_keys,
        "stop_preempted": stop,
        "prefill_cost": config.prefill_cost,
    }


def make_cadence(config: RoleConfig, collective: Collective | None = None) -> Cadence:
    """The cadence of this role, voting over ``collective`` (None: an engine on its own). Raises ConfigError."""
    check(config)
    role = config.kind
    if role == Role.UNIFIED:
        return Unified()
    if role == Role.NORMAL:
        return PhaseVoted(
            collective,
            all_interval=config.all_interval,
            any_interval=config.any_interval,
            kv_limit=config.kv_limit,
            time_budget_ns=config.time_budget_ns,
        )
    kind = StepKind.PREFILL if role == Role.PROMPT else StepKind.DECODE
    return OneKind(kind, collective, time_budget_ns=config.time_budget_ns if role == Role.PROMPT else 0)


def ignored_message(reason: int) -> tuple[str, str | None]:
    """Why the scheduler ended a request by itself, for its caller, and the field at fault, if it is its own."""
    return _IGNORED[Ignored(reason)], None if reason == Ignored.PREEMPTED else "prompt"

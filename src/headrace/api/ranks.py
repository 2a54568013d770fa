"""Engines in processes of their own, alone or as ranks of a group: what each gets of the machine, how it is built
there, and how a group is connected to.

The front reads this file too and must not import torch; what builds engines imports it when it is called.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from headrace import env
from headrace.config import EngineConfig, resolve
from headrace.contract.errors import ConfigError
from headrace.engine.engine import Engine
from headrace.engine.group import GroupClient
from headrace.engine.starting import Flag
from headrace.kernels.placement import share_out
from headrace.kernels.processors import usable_processors
from headrace.kernels.topology import usable

if TYPE_CHECKING:
    from .launch import Launched
    from .seats import ExpertSeat

log = logging.getLogger(__name__)
MEETING_S = 600.0  # ranks load before they meet, some from a colder disk than others


@dataclasses.dataclass(frozen=True, slots=True)
class Seat:
    """A rank's place: picklable, for its process. ``meeting``: where a voted group meets; None: no votes.
    ``processors``: those it keeps to; empty: any. ``expert_meeting``: where ranks meet that share experts; None: each
    has all of them."""

    settings: dict[str, Any]
    rank: int
    size: int
    meeting: str | None
    processors: tuple[int, ...] = ()
    expert_meeting: str | None = None


def thread_shares(config: EngineConfig) -> list[int]:
    """Kernel threads of each rank. Raises ConfigError when there are fewer threads than ranks."""
    size = config.group.data_parallel_size
    total = config.runtime.num_threads or env.num_threads() or usable_processors()
    if total < size:
        raise ConfigError(
            "data_parallel_size",
            f"{size} ranks cannot share {total} threads: each needs one. "
            f"Use at most {total}, or num_threads (--threads) {size}",
        )
    return [total // size + (rank < total % size) for rank in range(size)]


def rank_config(config: EngineConfig, rank: int, *, bound: bool = False) -> EngineConfig:
    """What one rank runs with: its share of threads and KV memory, and a recording of its own. ``bound``: it has
    processors of its own; without, its threads are bound to none, because all ranks would take the same.

    Raises ConfigError when there are fewer threads than ranks.
    """
    size, threads = config.group.data_parallel_size, thread_shares(config)[rank]
    cache, record = config.cache, config.runtime.record
    memory = None if cache.kv_memory is None else max(1, cache.kv_memory // size)
    return dataclasses.replace(
        config,
        cache=dataclasses.replace(cache, kv_memory=memory, kv_memory_fraction=cache.kv_memory_fraction / size),
        runtime=dataclasses.replace(
            config.runtime,
            num_threads=threads,
            pinning=config.runtime.pinning if bound else "none",
            record=None if record is None else recording_of(record, rank),
        ),
        group=dataclasses.replace(config.group, data_parallel_size=1, expert_parallel=False),  # its seat says more
    )


def recording_of(path: str, rank: int) -> str:
    """``run.jsonl`` becomes ``run.rank0.jsonl``."""
    whole = Path(path)
    return str(whole.with_name(f"{whole.stem}.rank{rank}{whole.suffix}"))


def keep_to(processors: Sequence[int]) -> None:
    """Keeps this thread, and all that it will start, to these processors; what the system refuses is said."""
    try:
        os.sched_setaffinity(0, processors)
    except OSError as error:
        log.warning("the system refused to keep this rank to processors %s: %s", tuple(processors), error)


def build_rank(seat: Seat) -> tuple[Engine, dict[str, Any]]:
    """What a rank's process runs. A vote is waited for as long as a step may take: the others may be in one."""
    if seat.processors:
        keep_to(seat.processors)  # before torch is imported: its threads are to inherit it
    from headrace.parallel.gloo import GlooGroup

    from .launch import launch

    config, meeting = resolve(seat.settings), seat.meeting
    if meeting is None:
        return facts_of(launch(config))
    timeout_s = config.runtime.step_timeout_s
    vote = lambda: GlooGroup(seat.rank, seat.size, meeting, MEETING_S, timeout_s)  # noqa: E731
    return facts_of(launch(config, meet=vote, experts=expert_seat(seat, config)))


def expert_seat(seat: Seat, config: EngineConfig) -> ExpertSeat | None:
    """This rank's part of the experts; None where each rank has all of them."""
    from headrace.parallel.eplb.balancer import ExpertShare
    from headrace.parallel.eplb.stats import RebalanceConfig
    from headrace.parallel.gloo import GlooExchange

    from .seats import ExpertSeat

    meeting, group, timeout_s = seat.expert_meeting, config.group, config.runtime.step_timeout_s
    if meeting is None:
        return None
    rebalance = None
    if group.rebalance_interval:
        rebalance = RebalanceConfig(group.expert_spares, group.rebalance_window, group.rebalance_interval)
    share = ExpertShare(seat.rank, seat.size, group.expert_spares)
    return ExpertSeat(share, rebalance, lambda: GlooExchange(seat.rank, seat.size, meeting, MEETING_S, timeout_s))


def build_alone(settings: dict[str, Any]) -> tuple[Engine, dict[str, Any]]:
    """What the process of an engine without a group runs: launches from plain settings."""
    from .launch import launch

    return facts_of(launch(resolve(settings)))


def facts_of(launched: Launched) -> tuple[Engine, dict[str, Any]]:
    """The engine, and what a front in another process must know of it."""
    names = ("vocab_size", "max_model_len", "model_name")
    facts = {name: getattr(launched, name) for name in names}
    cost = {} if launched.step_cost is None else {"step_cost": msgspec.to_builtins(launched.step_cost)}
    if launched.eyes is not None:
        facts["eyes"] = dataclasses.asdict(launched.eyes)
    return launched.engine, facts | {"pool": dataclasses.asdict(launched.pool)} | cost


def connect_group(config: EngineConfig, give_up: Flag | None = None) -> tuple[GroupClient, dict[str, Any]]:
    """Starts the group; facts hold for every rank. Raises ConfigError or EngineDead, and then nothing is left."""
    size = config.group.data_parallel_size
    votes = config.scheduler.discipline == "voted"
    parts = share_out(usable(), thread_shares(config), config.runtime.pinning)
    settings = [dataclasses.asdict(rank_config(config, rank, bound=bool(parts[rank]))) for rank in range(size)]
    # The file only serves to meet; once all are ready it can go, so that nothing is left whoever ends how.
    with tempfile.TemporaryDirectory(prefix="headrace-group-") as folder:
        meeting = f"file:{Path(folder) / 'meeting'}" if votes else None
        experts = f"file:{Path(folder) / 'experts'}" if config.group.expert_parallel else None
        seats = [Seat(settings[rank], rank, size, meeting, parts[rank], experts) for rank in range(size)]
        client = GroupClient(build_rank, seats, votes=votes, give_up=give_up, leftovers=[folder])
    facts = dict(client.infos[0])
    facts["max_model_len"] = min(info["max_model_len"] for info in client.infos)
    return client, facts

"""The split discipline with each engine in a process of its own: what each gets of the machine, and how it is built.

The front reads this file too and must not import torch; what builds engines imports it when it is called.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from headrace import env
from headrace.config import EngineConfig, resolve
from headrace.contract.errors import ConfigError
from headrace.engine.engine import Engine
from headrace.engine.local_socket import make_folder
from headrace.engine.process_pair import ROLES, ProcessPair, children
from headrace.engine.starting import Flag
from headrace.kernels.processors import usable_processors


@dataclasses.dataclass(frozen=True, slots=True)
class RoleSeat:
    """One engine's place: picklable, for its process. ``address``: where sequences are handed over."""

    settings: dict[str, Any]
    role: str
    address: str


def role_config(config: EngineConfig, role: str) -> EngineConfig:
    """Half the threads and half the KV memory, and a recording of its own. Raises ConfigError for too few threads."""
    total = config.runtime.num_threads or env.num_threads() or usable_processors()
    if total < 2:
        raise ConfigError("discipline", "split in processes needs two kernel threads, one for each engine")
    threads = total - total // 2 if role == "prompt" else total // 2
    cache, record = config.cache, config.runtime.record
    memory = None if cache.kv_memory is None else max(1, cache.kv_memory // 2)
    cache = dataclasses.replace(cache, kv_memory=memory, kv_memory_fraction=cache.kv_memory_fraction / 2)
    if record is not None:
        path = Path(record)
        record = str(path.with_name(f"{path.stem}.{role}{path.suffix}"))
    runtime = dataclasses.replace(config.runtime, num_threads=threads, pinning="none", record=record)
    return dataclasses.replace(config, cache=cache, runtime=runtime)


def build_role(seat: RoleSeat) -> tuple[Engine, dict[str, Any]]:
    """What a role's process runs."""
    from .roles import launch_role

    return launch_role(resolve(seat.settings), seat.role, seat.address)


def connect_pair(config: EngineConfig, give_up: Flag | None = None) -> tuple[ProcessPair, dict[str, Any]]:
    """Starts both and waits for them. Raises ConfigError or EngineDead, and then nothing is left.

    They meet in a folder of this user's alone, so no secret is needed between them.
    """
    settings = [dataclasses.asdict(role_config(config, role)) for role in ROLES]
    folder = make_folder()
    address = f"ipc://{Path(folder.name) / 'engine'}"
    seats = [RoleSeat(s, role, address) for s, role in zip(settings, ROLES)]
    try:
        pair = ProcessPair(children(build_role, seats, [folder.name]), give_up)
    except BaseException:
        folder.cleanup()
        raise
    pair.on_close = folder.cleanup
    facts = dict(pair.infos[0])
    facts["max_model_len"] = min(info["max_model_len"] for info in pair.infos)  # their pools may differ a little
    return pair, facts

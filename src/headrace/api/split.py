"""The split discipline: one model, two engines on threads of this process. One computes prompts, the other decodes.

They share weights and kernel threads, each has a KV pool of its own, and sequences move through an in-process port.
"""

from __future__ import annotations

import dataclasses
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from headrace.config import EngineConfig
from headrace.engine.engine import Engine
from headrace.engine.hand_over import Giver, Taker
from headrace.engine.local_hand_off import LocalHandOff
from headrace.engine.pair import PairClient
from headrace.engine.roles import RoleConfig
from headrace.worker.memory import PoolSize

from .facts import facts_of_parts
from .launch import Parts, Progress, build_engine, load_parts, plan_memory
from .text.tokenizer import Tokenizer


def connect_split(
    config: EngineConfig, *, progress: Progress | None = None
) -> tuple[PairClient, Tokenizer | None, dict[str, Any]]:
    """Loads once, builds both engines with half of the KV memory each. Raises ConfigError, ModelError or PullError."""
    parts = load_parts(config, progress)
    halved = _half(config)
    pool, max_model_len = plan_memory(halved, parts.model)
    port = LocalHandOff()
    with ExitStack() as undo:
        prompt = _engine(halved, parts, pool, max_model_len, "prompt", port)
        undo.callback(prompt.close)
        completion = _engine(halved, parts, pool, max_model_len, "completion", port)
        undo.callback(completion.close)
        client = PairClient(prompt, completion, port)
        undo.pop_all()
    return client, parts.tokenizer, facts_of_parts(parts, pool, max_model_len)


def _half(config: EngineConfig) -> EngineConfig:
    cache = config.cache
    memory = None if cache.kv_memory is None else max(1, cache.kv_memory // 2)
    half = dataclasses.replace(cache, kv_memory=memory, kv_memory_fraction=cache.kv_memory_fraction / 2)
    return dataclasses.replace(config, cache=half)


def _engine(
    config: EngineConfig, parts: Parts, pool: PoolSize, max_model_len: int, role: str, port: LocalHandOff
) -> Engine:
    record = config.runtime.record
    if record is not None:
        path = Path(record)
        own = str(path.with_name(f"{path.stem}.{role}{path.suffix}"))
        config = dataclasses.replace(config, runtime=dataclasses.replace(config.runtime, record=own))
    return build_engine(
        config,
        parts,
        pool,
        max_model_len,
        RoleConfig(role=role),
        relay=lambda worker, observer, _: Giver(port, worker) if role == "prompt" else Taker(port, worker, observer),
    )

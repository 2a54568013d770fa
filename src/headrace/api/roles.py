"""An engine of one role, launched: it computes prompts, or continues them, and hands over through a socket."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

from headrace.config import EngineConfig, kv_format
from headrace.contract.errors import ConfigError
from headrace.engine.engine import Engine
from headrace.engine.hand_over import Giver, Taker
from headrace.engine.recall import Recall
from headrace.engine.remote_giver import RemoteGiver
from headrace.engine.remote_taker import RemoteTaker
from headrace.engine.roles import RoleConfig
from headrace.engine.sockets import Secure
from headrace.kv.connector import StoreConnector
from headrace.obs.recorder import Recorder
from headrace.worker.kv_frames import TensorCodec
from headrace.worker.worker import Worker

from .determinism import settle
from .facts import facts_of_parts
from .launch import build_engine, load_parts, plan_memory
from .pictures import most_rows


def launch_role(
    config: EngineConfig, role: str, address: str, secure: Secure | None = None
) -> tuple[Engine, dict[str, Any]]:
    """The engine, and what a front must know of it. A completion engine listens on ``address``, a prompt engine sends
    there. Raises ConfigError, ModelError, PullError or StoreError."""
    if config.model.prefill_keep is not None:
        raise ConfigError("prefill_keep", "does not go with a role: sequences are handed over whole")
    config = settle(config).config
    parts = load_parts(config)
    pool, max_model_len = plan_memory(config, parts.model)
    form = f"blocks of {config.cache.block_size}, kv {kv_format(config)}, dtype {config.model.dtype}"
    facts = facts_of_parts(parts, pool, max_model_len)
    facts |= {"role": role, "dtype": config.model.dtype, "form": f"{form}, vocabulary {parts.model.vocab_size}"}
    facts["most_picture_rows"] = most_rows(replace(config, scheduler=replace(config.scheduler, discipline="split")))
    build = partial(build_engine, config, parts, pool, max_model_len, RoleConfig(role))
    with ExitStack() as undo:  # an engine that cannot be built leaves no socket
        if role == "prompt":
            giver = RemoteGiver(address, TensorCodec(), secure=secure)
            undo.callback(giver.leave)
            engine = build(relay=lambda worker, *_: Giver(giver, worker, config.cache.block_size))
        else:
            taker = RemoteTaker(address, TensorCodec(), secure=secure)
            undo.callback(taker.close)
            engine = build(relay=partial(_taker, taker), recalls=True)
            taker.wake = engine.intake.poke
        undo.pop_all()
    return engine, facts


def _taker(port: RemoteTaker, worker: Worker, observer: Recorder | None, connector: StoreConnector | None) -> Taker:
    port.recalls = connector is not None
    recall = None if connector is None else Recall(connector, observer, lambda: port.wake())
    return Taker(port, worker, observer, recall=recall)

"""Engines of one role as services, and a front's connection to a prompt and a completion engine somebody else started.

The front reads this file too and must not import torch; what builds an engine imports it when it is called.
"""

from __future__ import annotations

from typing import Any

import zmq

from headrace.config import EngineConfig
from headrace.contract.errors import ConfigError
from headrace.engine.client import EngineClient
from headrace.engine.process_pair import ProcessPair
from headrace.engine.remote import RemoteClient
from headrace.engine.sockets import Secure
from headrace.engine.standing import StandingEngine
from headrace.engine.starting import Flag
from headrace.kv.secret import Doorman, secure_client, secure_server
from headrace.models.sources import resolve_model

from .text.tokenizer import Tokenizer, load_tokenizer

LOOPBACK = ("tcp://127.0.0.1:", "tcp://[::1]:", "tcp://localhost:", "ipc://")


def open_role(config: EngineConfig, role: str, listen: str, hand_off: str, secret: bytes | None) -> StandingEngine:
    """Loads, listens, and is ready to run. Raises ConfigError, ModelError, PullError or StoreError.

    A port that is taken, or open to others without a secret, is refused before anything is loaded.
    """
    for name, address in (("listen", listen), ("hand_off", hand_off)):
        _check_address(name, address, secret)
    doorman = None if secret is None else Doorman(zmq.Context.instance(), secret)  # as long as this process lives
    from .roles import launch_role

    server = _server(secret, doorman)
    hand_over = _client(secret) if role == "prompt" else server
    engine, info = launch_role(config, role, hand_off, hand_over)
    try:
        return StandingEngine(engine, info, listen, secure=server)
    except BaseException:
        engine.close()
        raise


def connect_roles(
    config: EngineConfig, addresses: tuple[str, str], secret: bytes | None, give_up: Flag | None = None
) -> tuple[EngineClient, Tokenizer | None, dict[str, Any]]:
    """Waits for both engines. Raises ConfigError for engines that cannot work together, EngineDead for silent ones."""
    for name, address in zip(("prefill", "decode"), addresses):
        _check_address(name, address, secret)
    if config.runtime.encoder_process:
        from .encoder_launch import opened_encoder

        with opened_encoder(config, None, give_up) as over:
            pair, tokenizer, facts = _connected(config, addresses, secret, give_up)
            return over(pair), tokenizer, facts
    return _connected(config, addresses, secret, give_up)


def _connected(
    config: EngineConfig, addresses: tuple[str, str], secret: bytes | None, give_up: Flag | None
) -> tuple[ProcessPair, Tokenizer | None, dict[str, Any]]:
    source = resolve_model(config.model.model, offline=config.model.offline)
    tokenizer = None if source.tokenizer_path is None else load_tokenizer(source.tokenizer_path)
    pair = ProcessPair(
        lambda which, flag, on_dead: RemoteClient(
            addresses[which], role=("prefill", "decode")[which], secure=_client(secret), give_up=flag, on_dead=on_dead
        ),
        give_up,
    )
    try:
        facts = _facts(pair, source.name)
        _check_encoder(config, facts)
    except BaseException:
        pair.close()
        raise
    return pair, tokenizer, facts | {"deterministic": config.runtime.deterministic}


def _facts(pair: ProcessPair, model_name: str) -> dict[str, Any]:
    prompt, completion = pair.infos
    for name, info, role in (("prefill", prompt, "prompt"), ("decode", completion, "completion")):
        if info["role"] != role:
            raise ConfigError(name, f"the engine there is a {info['role']} engine")
        if info["model_name"] != model_name:
            raise ConfigError(name, f"the engine there serves {info['model_name']}, this front {model_name}")
    if prompt["form"] != completion["form"]:
        raise ConfigError("decode", f"the engines differ: {prompt['form']} and {completion['form']}")
    return prompt | {"max_model_len": min(prompt["max_model_len"], completion["max_model_len"])}


def _check_encoder(config: EngineConfig, facts: dict[str, Any]) -> None:
    """The front's encoder computes as its own settings say; the engines' must be the same."""
    if config.runtime.encoder_process and facts["dtype"] != config.model.dtype:
        raise ConfigError("dtype", f"the engines have {facts['dtype']}, the encoder here {config.model.dtype}")


def _check_address(name: str, address: str, secret: bytes | None) -> None:
    if not address.startswith(("tcp://", "ipc://")):
        raise ConfigError(name, f"must be an address such as tcp://127.0.0.1:7430, got {address!r}")
    if secret is None and not address.startswith(LOOPBACK):
        raise ConfigError("role_secret", f"needed: without one only this machine may be spoken to, not {address}")


def _server(secret: bytes | None, doorman: Doorman | None) -> Secure | None:
    if secret is None or doorman is None:
        return None

    def secure(socket: zmq.Socket[bytes]) -> None:
        secure_server(socket, secret)
        doorman.watch(socket)

    return secure


def _client(secret: bytes | None) -> Secure | None:
    return None if secret is None else lambda socket: secure_client(socket, secret)

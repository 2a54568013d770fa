"""The encoder of pictures in a process of its own: how it is built there, and how a client of engines gets one.

The front reads this file too and must not import torch; what builds the encoder imports it when it is called.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from headrace import env
from headrace.config import EngineConfig, resolve
from headrace.engine.client import EngineClient
from headrace.engine.encoder import Encoder
from headrace.engine.encoder_child import Encode
from headrace.engine.encoder_process import EncoderProcess
from headrace.engine.encoding import EncodingClient
from headrace.engine.starting import Flag
from headrace.models.sources import resolve_model

from .determinism import settle


def build_encoder(settings: dict[str, Any]) -> Encode:
    """What the encoder's process runs: the model's eyes, in the arithmetic of its engine.

    Raises ConfigError, ModelError or PullError."""
    import torch

    from headrace.kernels.resolve import resolve_ops
    from headrace.kernels.runtime import configure
    from headrace.models.registry import load_eyes
    from headrace.models.weights import open_checkpoint

    from .launch import DUMMY_SEED

    config = settle(resolve(settings)).config
    configure(config.model.backend, config.runtime.encoder_threads, env.isa(), "none")
    source = resolve_model(config.model.model, offline=config.model.offline)
    checkpoint = open_checkpoint(source.path, dummy_seed=DUMMY_SEED if source.dummy else None)
    ops = resolve_ops(config.model.backend, strict=config.model.strict)
    eyes = load_eyes(checkpoint, ops, exact=config.model.dtype == "float32")

    def encode(picture: Any) -> bytes:
        with torch.inference_mode():
            return eyes.picture_rows(picture).to(torch.float32).contiguous().numpy().tobytes()

    return encode


@contextmanager
def opened_encoder(
    config: EngineConfig, progress: Callable[[str, int, int], None] | None, give_up: Flag | None
) -> Iterator[Callable[[EngineClient], EngineClient]]:
    """Starts it and waits for it; the body puts it before a client, which then closes it. It is closed when the body
    fails. Raises EngineDead, PullError."""
    on_pull = None if progress is None else lambda done, total: progress("pull", done, total)
    resolve_model(config.model.model, progress=on_pull, offline=config.model.offline)  # its process shows no progress
    settings = dataclasses.asdict(config)
    start = lambda flag: EncoderProcess(build_encoder, settings, give_up=flag)  # noqa: E731
    encoder = Encoder(start, config.runtime.encoder_timeout_s, give_up)
    try:
        yield lambda client: EncodingClient(client, encoder, config.scheduler.max_waiting)
    except BaseException:
        encoder.close()
        raise

"""From a configuration to a client of a running engine: on a thread here, in a process of its own, or a group of them.

The front never imports torch unless the engine runs in its own process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from headrace.config import EngineConfig
from headrace.engine.client import EngineClient, ThreadClient
from headrace.engine.process import ProcessClient
from headrace.engine.starting import Flag
from headrace.models.sources import resolve_model

from .determinism import settle
from .pictures import most_rows
from .ranks import build_alone, connect_group, facts_of
from .split_processes import connect_pair
from .text.tokenizer import Tokenizer, load_tokenizer


@dataclass(frozen=True, slots=True)
class Connected:
    """``facts``: ``vocab_size``, ``max_model_len``, ``model_name``, ``pool`` and ``deterministic``, plain values."""

    client: EngineClient
    tokenizer: Tokenizer | None
    facts: dict[str, Any]


def connect(
    config: EngineConfig,
    *,
    own_process: bool,
    progress: Callable[[str, int, int], None] | None = None,
    give_up: Flag | None = None,
) -> Connected:
    """Raises ConfigError, ModelError, PullError or EngineDead. A group always has processes of its own.

    ``progress``: as ``launch`` has it; of engines in processes of their own it hears "start" and how many.
    ``give_up``: set when there is no sense in waiting for them any more.
    """
    settle(config)  # refused here, before a process is started for nothing
    if not config.runtime.encoder_process:
        return _engines(config, own_process, progress, give_up)
    from .encoder_launch import opened_encoder

    with opened_encoder(config, progress, give_up) as over:
        connected = _engines(config, own_process, progress, give_up)
        return replace(connected, client=over(connected.client))


def _engines(
    config: EngineConfig,
    own_process: bool,
    progress: Callable[[str, int, int], None] | None,
    give_up: Flag | None,
) -> Connected:
    """Connected to what generates."""
    told: dict[str, Any] = {"deterministic": config.runtime.deterministic, "most_picture_rows": most_rows(config)}
    told["skips_rows"] = config.model.prefill_keep is not None
    grouped, split = config.group.data_parallel_size > 1, config.scheduler.discipline == "split"
    if split and not own_process:
        from .split import connect_split

        return Connected(*connect_split(config, progress=progress))
    if not own_process and not grouped:
        from .launch import launch

        launched = launch(config, progress=progress)
        engine, facts = facts_of(launched)
        return Connected(ThreadClient(engine), launched.tokenizer, facts | told)
    on_pull = None if progress is None else lambda done, total: progress("pull", done, total)
    source = resolve_model(config.model.model, progress=on_pull, offline=config.model.offline)
    tokenizer = None if source.tokenizer_path is None else load_tokenizer(source.tokenizer_path)
    if grouped or split:
        client, facts = _start_several(config, progress, give_up)
        return Connected(client, tokenizer, facts | told)
    alone = ProcessClient(build_alone, asdict(config), give_up=give_up)
    return Connected(alone, tokenizer, alone.info | told)


def _start_several(
    config: EngineConfig, progress: Callable[[str, int, int], None] | None, give_up: Flag | None
) -> tuple[EngineClient, dict[str, Any]]:
    size = config.group.data_parallel_size
    grouped, count = size > 1, max(2, size)
    if progress is not None:
        progress("start", 0, count)
    client, facts = connect_group(config, give_up) if grouped else connect_pair(config, give_up)
    if progress is not None:
        progress("start", count, count)
    return client, facts

"""A rank in a process of its own: a real engine over a FakeWorker, in a NORMAL group that votes over gloo.

What it meets is reported through a pipe of its own as (rank, what, value).
"""

from __future__ import annotations

import time
from typing import Any

from headrace._core import Scheduler
from headrace.contract.errors import GroupBroken
from headrace.contract.request import Request, SamplingParams
from headrace.engine.engine import Engine
from headrace.engine.roles import RoleConfig, core_settings, make_cadence
from headrace.parallel.gloo import GlooGroup
from headrace.worker.fake import FakeWorker


def request(name: str, max_tokens: int) -> Request:
    return Request(
        request_id=name, prompt_token_ids=[5, 6, 7], sampling=SamplingParams(max_tokens=max_tokens), eos_ids=()
    )


def run_rank(rank: int, size: int, address: str, news: Any, max_tokens: int, timeout_s: float) -> None:
    """Rank 0 alone has a request. Ticks until the group is idle again, or breaks."""
    config = RoleConfig(role="normal")
    core = Scheduler(num_blocks=20_000, block_size=4, max_model_len=60_000, token_budget=64, **core_settings(config))
    group = GlooGroup(rank, size, address, timeout_s)
    engine = Engine(core, FakeWorker(), cadence=make_cadence(config, group))
    if rank == 0:
        engine.submit(request("a", max_tokens))
    tokens: list[int] = []
    try:
        for tick in range(1_000_000):
            tokens += [token for delta in engine.tick() for token in delta.token_ids]
            if tick == 20:
                news.send((rank, "running", tick))
            if tick > 20 and engine.idle:
                break
        news.send((rank, "done", tokens))
    except GroupBroken as error:
        news.send((rank, "broken", (str(error), time.time())))

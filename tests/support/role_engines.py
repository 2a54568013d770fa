"""Engines of one role over FakeWorkers that hand over through sockets, in processes of their own or not."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from headrace._core import Scheduler
from headrace.contract.errors import EngineDead, WorkerError
from headrace.contract.handoff import HandedOver, Part
from headrace.contract.request import Request, SamplingParams
from headrace.engine.engine import Engine
from headrace.engine.hand_over import Giver, Taker
from headrace.engine.remote_giver import RemoteGiver
from headrace.engine.remote_taker import RemoteTaker
from headrace.engine.roles import RoleConfig, core_settings, make_cadence
from headrace.worker.fake import FakeWorker, rolling_token

BLOCK = 4
DEADLINE_S = 30.0


def until(condition: Callable[[], Any]) -> Any:
    """Waits for it, and gives what it says."""
    deadline = time.monotonic() + DEADLINE_S
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.002)
    return found


def done(value: Any) -> Future[Any]:
    """A copy that is there."""
    future: Future[Any] = Future()
    future.set_result(value)
    return future


def item(name: str, blocks: list[list[int]], content: Any, sent: list[int]) -> HandedOver:
    """A sequence of three tokens and one more that was drawn."""
    request = Request(request_id=name, prompt_token_ids=[1, 2, 3], sampling=SamplingParams(max_tokens=9))
    return HandedOver(request, (4,), 0, None, blocks, content, time.monotonic() + 30, sent)


class IdCodec:
    """A block's number is its content."""

    def pack(self, content: list[int]) -> tuple[list[Part], list[Any]]:
        return [], [b",".join(b"%d" % block for block in content)]

    def unpack(self, parts: Sequence[Part], frames: Sequence[Any]) -> list[int]:
        if len(frames) != 1 or parts:
            raise WorkerError("one frame is due")
        return [int(block) for block in bytes(frames[0]).split(b",") if block]

    def arrange(self, contents: Sequence[list[int]], rows: Sequence[tuple[int, int]]) -> list[int]:
        return [contents[i][row] for i, row in rows]


class MovingWorker(FakeWorker):
    """Its copies are to come, as a device's are."""

    def read_blocks(self, blocks: Sequence[int]) -> Any:
        future: Future[list[int]] = Future()
        future.set_result(list(blocks))
        return future

    def write_blocks(self, blocks: Sequence[int], content: Any, rows: Sequence[int]) -> Future[None]:
        failed: Future[None] = Future()
        if (error := content.exception()) is not None:
            failed.set_exception(error)
            return failed
        return super().write_blocks(blocks, content.result(), rows)


def engine_with(role: str, port: Any, worker: FakeWorker, **limits: int) -> Engine:
    config = RoleConfig(role=role)
    settings = {"num_blocks": 3000, "block_size": BLOCK, "max_model_len": 4000, "token_budget": 32} | limits
    relay = Giver(port, worker, BLOCK) if role == "prompt" else Taker(port, worker)
    core = Scheduler(**settings, **core_settings(config))
    engine = Engine(core, worker, cadence=make_cadence(config), overlap=config.overlap, relay=relay)
    if role == "completion":
        port.wake = engine.intake.poke
    return engine


def build(seat: tuple[str, str, float]) -> tuple[Engine, dict[str, Any]]:
    """What a process runs: (role, address, seconds a token takes). The role "broken" does not start."""
    role, address, token_s = seat
    if role == "broken":
        raise EngineDead("no such model")

    def slow(tokens: Sequence[int]) -> int:
        time.sleep(token_s)
        return rolling_token(tokens)

    port = RemoteGiver(address, IdCodec()) if role == "prompt" else RemoteTaker(address, IdCodec())
    return engine_with(role, port, MovingWorker(next_token=slow)), {"role": role}

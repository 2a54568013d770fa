"""What a front that is gone had asked for ends, wherever it is, and nobody hears of it; what comes after it lives."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from role_engines import BLOCK, MovingWorker, engine_with

from headrace._core import Scheduler
from headrace.contract.request import Request, SamplingParams
from headrace.contract.result import TokenDelta
from headrace.engine.client import Sinks
from headrace.engine.engine import Engine
from headrace.engine.local_hand_off import LocalHandOff
from headrace.engine.messages import Deltas
from headrace.engine.remote import RemoteClient
from headrace.engine.standing import StandingEngine
from headrace.worker.fake import FakeWorker


def ask(name: str, max_tokens: int = 50) -> Request:
    return Request(request_id=name, prompt_token_ids=[1, 2], sampling=SamplingParams(max_tokens=max_tokens, seed=0))


def test_what_came_before_ends_untold_and_what_comes_after_lives() -> None:
    engine = Engine(Scheduler(num_blocks=200, block_size=BLOCK), FakeWorker())
    engine.submit(ask("running"))
    for _ in range(3):
        engine.tick()
    engine.submit(ask("at the door"))
    engine.abort("at the door")
    engine.intake.abandon()
    engine.submit(ask("after", 2))
    deltas: list[TokenDelta] = []
    while not engine.quiet:
        deltas += engine.tick()
    assert {delta.request_id for delta in deltas} == {"after"}
    assert sum(len(delta.token_ids) for delta in deltas) == 2
    assert engine.core.num_unfinished == engine.core.num_used_blocks == 0
    engine.close()


def test_what_is_between_the_engines_ends_with_it() -> None:
    port, worker = LocalHandOff(), MovingWorker()
    prompt, completion = engine_with("prompt", port, MovingWorker()), engine_with("completion", port, worker)
    worker.write_blocks = lambda *_: Future()  # type: ignore[assignment, method-assign, return-value]
    for name in ("filling", "in the port"):  # neither has had a delta from the completion engine
        prompt.submit(ask(name))
        for _ in range(4):
            prompt.tick()
        if name == "filling":
            completion.tick()
    assert (completion.core.num_unfinished, port.num_waiting) == (1, 1)
    completion.intake.abandon()
    assert [completion.tick() for _ in range(3)] == [[], [], []]
    assert completion.core.num_unfinished == completion.core.num_used_blocks == port.num_waiting == 0
    assert completion.quiet


def test_a_front_that_goes_takes_its_untold_news_along(tmp_path: Any) -> None:
    engine = Engine(Scheduler(num_blocks=200, block_size=BLOCK), FakeWorker())
    server = StandingEngine(engine, {}, f"ipc://{tmp_path / 'engine'}")
    server._front = b"front"
    engine.submit(ask("asked"))
    server._sink([TokenDelta(request_id="asked", token_ids=[1])])
    server._part()
    told: list[Any] = []
    server._front, server._tell = b"next", told.append  # type: ignore[method-assign]
    server._tell_news()
    assert (engine.tick(), engine.quiet, told) == ([], True, [])
    server._socket.close()
    engine.close()


def test_a_front_ends_what_it_has_never_asked_for() -> None:
    front, posted = RemoteClient.__new__(RemoteClient), []
    front._sinks, front.abort = Sinks(), posted.append  # type: ignore[method-assign]
    heard: list[TokenDelta] = []
    front._sinks.add("mine", heard.append)
    stranger = TokenDelta(request_id="stranger", token_ids=[1])
    front._take(Deltas([stranger, stranger, TokenDelta(request_id="mine", token_ids=[2])]))
    front._take(Deltas([TokenDelta(request_id="stranger", finish_reason="abort")]))
    assert (posted, [delta.request_id for delta in heard]) == (["stranger"], ["mine"])

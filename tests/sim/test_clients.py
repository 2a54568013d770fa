"""Engines on a thread and in a process of their own: streams, refusals, deaths. Over the fake worker."""

from __future__ import annotations

import os
import queue
import signal
import time
from collections.abc import Iterator

import pytest
import zmq

from headrace._core import Scheduler
from headrace.contract.errors import EngineDead
from headrace.contract.request import Request, SamplingParams
from headrace.contract.result import TokenDelta
from headrace.engine.client import EngineClient, ThreadClient
from headrace.engine.engine import Engine
from headrace.engine.intake import Intake
from headrace.engine.process import ProcessClient
from headrace.engine.sockets import sent
from headrace.worker.fake import FakeWorker, rolling_token

DEADLINE_S = 20.0
TOKEN_MS = 1.0  # at least
LONG = 60_000  # tokens: three deadlines


def build(token_ms: float = 0.0) -> tuple[Engine, dict[str, int]]:
    def slow(tokens: object) -> int:
        time.sleep(token_ms / 1000)
        return rolling_token(tokens)  # type: ignore[arg-type]

    core = Scheduler(num_blocks=30_000, block_size=4, token_budget=32, max_model_len=100_000)
    return Engine(core, FakeWorker(next_token=slow)), {"answer": 42}


def refuse(reason: str) -> tuple[Engine, dict[str, int]]:
    raise EngineDead(reason)


def vanish(code: int) -> tuple[Engine, dict[str, int]]:
    os._exit(code)


def ask(name: str, max_tokens: int = 5) -> Request:
    return Request(request_id=name, prompt_token_ids=[1, 2, 3], sampling=SamplingParams(max_tokens=max_tokens, seed=0))


def answer(deltas: queue.Queue[TokenDelta]) -> tuple[list[int], TokenDelta]:
    tokens: list[int] = []
    while True:
        delta = deltas.get(timeout=DEADLINE_S)
        tokens += delta.token_ids
        if delta.finish_reason is not None:
            return tokens, delta


@pytest.fixture(params=["thread", "process"])
def client(request: pytest.FixtureRequest) -> Iterator[EngineClient]:
    made: EngineClient = (
        ThreadClient(build(TOKEN_MS)[0]) if request.param == "thread" else ProcessClient(build, TOKEN_MS)
    )
    yield made
    made.close()


def test_many_streams_at_once(client: EngineClient) -> None:
    sinks = [queue.Queue[TokenDelta]() for _ in range(20)]
    for i, sink in enumerate(sinks):
        client.submit(ask(str(i), 10), sink.put)
    answers = [answer(sink) for sink in sinks]
    assert all(tokens == answers[0][0] and len(tokens) == 10 for tokens, _ in answers)


def test_abort_ends_a_stream_and_others_go_on(client: EngineClient) -> None:
    long, short = queue.Queue[TokenDelta](), queue.Queue[TokenDelta]()
    client.submit(ask("long", LONG), long.put)
    client.submit(ask("short", 5), short.put)
    client.abort("long")
    assert answer(long)[1].finish_reason == "abort"
    assert answer(short)[1].finish_reason == "length"


def test_close_ends_open_streams(client: EngineClient) -> None:
    sink = queue.Queue[TokenDelta]()
    client.submit(ask("a", LONG), sink.put)
    client.close()
    assert answer(sink)[1].finish_reason in ("abort", "error")
    with pytest.raises(EngineDead):
        client.submit(ask("b"), sink.put)


def test_a_refused_request_says_why(client: EngineClient) -> None:
    sink = queue.Queue[TokenDelta]()
    huge = Request(request_id="huge", prompt_token_ids=[1] * 100_001, sampling=SamplingParams(max_tokens=5, seed=0))
    client.submit(huge, sink.put)
    assert "prompt" in (answer(sink)[1].error or "")


def test_a_killed_engine_ends_every_stream_with_an_error() -> None:
    client = ProcessClient(build, TOKEN_MS)
    assert client.info == {"answer": 42}
    sinks = [queue.Queue[TokenDelta]() for _ in range(3)]
    for i, sink in enumerate(sinks):
        client.submit(ask(str(i), LONG), sink.put)
    sinks[0].get(timeout=DEADLINE_S)
    assert client.pid is not None
    os.kill(client.pid, signal.SIGKILL)
    for sink in sinks:
        last = answer(sink)[1]
        assert last.finish_reason == "error"
        assert "died" in (last.error or "")
    with pytest.raises(EngineDead):
        client.submit(ask("late"), sinks[0].put)
    client.close()


def test_an_engine_that_cannot_start_says_why() -> None:
    with pytest.raises(EngineDead, match="no such model"):
        ProcessClient(refuse, "no such model")
    with pytest.raises(EngineDead, match="exit code 3"):
        ProcessClient(vanish, 3)


class Broken(FakeWorker):
    """A worker whose handle breaks the loop itself, not only a step."""

    def close(self) -> None:
        raise RuntimeError("cannot close")


def test_a_loop_that_fails_ends_every_request() -> None:
    engine = Engine(Scheduler(num_blocks=50, block_size=4), Broken())
    client = ThreadClient(engine)
    engine._drain = None  # type: ignore[assignment, method-assign]
    sink = queue.Queue[TokenDelta]()
    client.submit(ask("a"), sink.put)
    assert answer(sink)[1].finish_reason == "error"
    client.close()
    assert not client.alive


def test_an_end_waits_for_its_request() -> None:
    """Both may arrive between two looks of the loop at the door; the end must not come first."""
    intake = Intake(4)
    intake.submit(ask("a"))
    intake.end("a", "abort")
    intake.end("b", "stop")
    assert intake.drain_ends() == [("b", "stop")]
    assert [request.request_id for request in intake.drain_requests()] == ["a"]
    assert intake.drain_ends() == [("a", "abort")]
    assert not intake.busy


def test_an_end_that_is_interrupted_leaves_no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that is stopped hears nothing; without being killed it would hold up the interpreter's end for ever."""
    client = ProcessClient(build, TOKEN_MS)
    child = client._process
    assert child.pid is not None
    os.kill(child.pid, signal.SIGSTOP)
    join, joined = child.join, []

    def interrupted(timeout: float | None = None) -> None:
        joined.append(timeout)
        if len(joined) == 1:
            raise KeyboardInterrupt
        join(timeout)

    monkeypatch.setattr(child, "join", interrupted)
    with pytest.raises(KeyboardInterrupt):
        client.close()
    assert child.exitcode == -signal.SIGKILL


def test_what_nobody_takes_is_neither_waited_for_nor_an_error() -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as lonely:
        assert not sent(lonely, b"anybody?")

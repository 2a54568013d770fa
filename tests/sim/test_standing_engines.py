"""Engines of one role that wait for a front, over FakeWorkers on threads of this process: serving, fronts that come and
go, secrets, and engines that are gone."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
from role_engines import build

from headrace.contract.errors import EngineDead
from headrace.contract.request import Request, SamplingParams
from headrace.contract.result import TokenDelta
from headrace.engine.messages import Greet, Submit
from headrace.engine.process_pair import ProcessPair
from headrace.engine.remote import RemoteClient
from headrace.engine.standing import StandingEngine
from headrace.kv.secret import Doorman, secure_client, secure_server
from headrace.worker.fake import rolling_token

DEADLINE_S = 30.0


def expected(prompt: list[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(rolling_token(tokens))
    return tokens[len(prompt) :]


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def ask(name: str, prompt: list[int], max_tokens: int) -> Request:
    sampling = SamplingParams(max_tokens=max_tokens, seed=0)
    return Request(request_id=name, prompt_token_ids=prompt, sampling=sampling)


def answer(news: queue.Queue[TokenDelta]) -> tuple[list[int], TokenDelta]:
    tokens: list[int] = []
    while True:
        delta = news.get(timeout=DEADLINE_S)
        tokens += delta.token_ids
        if delta.finish_reason is not None:
            return tokens, delta


class Standing:
    """A prompt engine and a completion engine, each listening for a front."""

    def __init__(self, folder: Path, front_silence_s: float = DEADLINE_S) -> None:
        hand_over = f"ipc://{folder / 'hand-over'}"
        self.addresses = tuple(f"ipc://{folder / role}" for role in ("prompt", "completion"))
        self.engines: list[Any] = [None, None]
        self.servers: list[Any] = [None, None]
        self.threads: list[Any] = [None, None]
        for which, role in ((1, "completion"), (0, "prompt")):
            self.engines[which], info = build((role, hand_over, 0.001))
            self.servers[which] = StandingEngine(
                self.engines[which], info, self.addresses[which], front_silence_s=front_silence_s
            )
            self.threads[which] = threading.Thread(target=self.servers[which].run, daemon=True)
            self.threads[which].start()

    def front(self, silent: int | None = None) -> ProcessPair:
        """``silent``: which engine will be, and is found to be soon."""
        return ProcessPair(
            lambda which, give_up, on_dead: RemoteClient(
                self.addresses[which],
                connect_timeout_s=DEADLINE_S,
                silence_timeout_s=2.5 if which == silent else DEADLINE_S,
                give_up=give_up,
                on_dead=on_dead,
            )
        )

    def stop(self, which: int) -> None:
        self.servers[which].stop()
        self.threads[which].join(DEADLINE_S)
        assert not self.threads[which].is_alive()

    def await_empty(self) -> None:
        until(lambda: all(engine.core.num_unfinished == engine.core.num_used_blocks == 0 for engine in self.engines))


@pytest.fixture
def standing(tmp_path: Path) -> Iterator[Standing]:
    both = Standing(tmp_path)
    yield both
    for which in (0, 1):
        both.stop(which)


def test_one_front_after_another_is_served(standing: Standing) -> None:
    for i in range(2):
        front, news = standing.front(), queue.Queue[TokenDelta]()
        assert [info["role"] for info in front.infos] == ["prompt", "completion"]
        front.submit(ask(f"whole {i}", prompt := [i + 1] * 70, 8), news.put)
        assert answer(news)[0] == expected(prompt, 8)
        front.submit(ask(f"left {i}", prompt, 3000), queue.Queue[TokenDelta]().put)
        until(lambda: standing.engines[1].core.num_running)
        front.close()  # what was left goes with the front
        standing.await_empty()


def test_a_second_front_is_refused_while_the_first_is_there(standing: Standing) -> None:
    front = standing.front()
    with pytest.raises(EngineDead, match="another front is using this engine"):
        RemoteClient(standing.addresses[0], connect_timeout_s=4.0)
    assert front.alive
    front.close()


def test_what_a_silent_front_had_asked_for_ends(tmp_path: Path) -> None:
    standing = Standing(tmp_path, front_silence_s=2.5)
    sockets: list[Any] = [zmq.Context.instance().socket(zmq.DEALER) for _ in (0, 1)]
    for which in (1, 0):  # an engine without a front would end at once what comes to it
        sockets[which].linger = 0
        sockets[which].connect(standing.addresses[which])
        sockets[which].send(msgspec.msgpack.encode(Greet()))
        assert sockets[which].poll(1000 * DEADLINE_S)
    sockets[0].send(msgspec.msgpack.encode(Submit(ask("orphan", [1, 2, 3], 3500))))
    until(lambda: standing.engines[0].core.num_unfinished or standing.engines[1].core.num_unfinished)
    other = standing.front()  # it waits until the silent one counts as gone
    assert other.alive
    other.close()
    for socket in sockets:
        socket.close()
    standing.await_empty()
    for which in (0, 1):
        standing.stop(which)


def test_a_prompt_engine_that_goes_costs_only_what_it_had(standing: Standing) -> None:
    """Seen by its connection, long before its silence would tell."""
    front, news = standing.front(), queue.Queue[TokenDelta]()
    front.submit(ask("long", [1, 2, 3], 3000), news.put)
    until(lambda: standing.engines[1].core.num_running)
    assert front.ready
    standing.stop(0)
    until(lambda: front._prompt.dead is not None)
    assert front.alive
    assert not front.ready
    with pytest.raises(EngineDead, match="no sign of life for 2 s"):
        front.submit(ask("more", [1], 1), news.put)
    assert answer(news)[0] == expected([1, 2, 3], 3000)
    front.close()


def test_an_engine_that_does_not_know_its_front_says_so(standing: Standing) -> None:
    """It was started again so quickly that nothing was missed of it, or had held the front for dead."""
    front, news = standing.front(), queue.Queue[TokenDelta]()
    standing.servers[1]._front = None
    _, last = (front.submit(ask("lost", [1, 2, 3], 3900), news.put), answer(news))[1]
    assert "completion engine" in str(last.error)
    assert "does not know this front" in str(last.error)
    assert not front.alive
    front.close()


def test_a_completion_engine_that_goes_ends_what_is_open_with_the_reason(standing: Standing) -> None:
    front, news = standing.front(silent=1), queue.Queue[TokenDelta]()
    front.submit(ask("long", [1, 2, 3], 3900), news.put)
    until(lambda: standing.engines[1].core.num_running)
    standing.servers[1]._hear = lambda *_: None  # it neither hears nor speaks any more
    standing.servers[1]._tell = lambda *_: None
    _, last = answer(news)
    assert "the completion engine" in str(last.error)
    assert not front.alive
    front.close()


def test_nobody_speaks_to_an_engine_without_its_secret(tmp_path: Path) -> None:
    door = Doorman(zmq.Context.instance(), b"a secret of its own")
    engine, info = build(("completion", f"ipc://{tmp_path / 'hand-over'}", 0.0))
    secure = lambda socket: secure_server(socket, b"a secret of its own")  # noqa: E731
    server = StandingEngine(engine, info, "tcp://127.0.0.1:*", secure=secure)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    with pytest.raises(EngineDead, match="no answer within"):
        RemoteClient(server.address, connect_timeout_s=0.5)
    with pytest.raises(EngineDead, match="no answer within"):
        RemoteClient(server.address, connect_timeout_s=0.5, secure=lambda s: secure_client(s, b"another secret here"))
    client = RemoteClient(server.address, secure=lambda s: secure_client(s, b"a secret of its own"))
    assert client.info["role"] == "completion"
    client.close()
    server.stop()
    thread.join(DEADLINE_S)
    door.close()


@pytest.mark.parametrize("which", [0, 1])
def test_an_engine_that_cannot_be_understood_leaves_nobody_waiting(standing: Standing, which: int) -> None:
    """A prompt engine is tried again a few times, to no avail."""
    front, news = standing.front(), queue.Queue[TokenDelta]()
    front.submit(ask("long", [1, 2, 3], 3900), news.put)
    until(lambda: standing.engines[1].core.num_running)
    standing.servers[which]._encode = lambda _: b"\xc1"
    _, last = answer(news)
    assert "cannot be understood" in str(last.error)
    assert not front.alive
    front.close()


def test_an_address_that_is_none_is_an_engine_that_is_not_there() -> None:
    with pytest.raises(EngineDead, match="the decode engine at nowhere cannot be connected to"):
        RemoteClient("nowhere", role="decode")


def test_a_front_that_comes_to_one_it_cannot_understand_says_so(standing: Standing) -> None:
    standing.servers[1]._encode = lambda _: b"\xc1"
    with pytest.raises(EngineDead, match="the engine cannot be understood"):
        RemoteClient(standing.addresses[1])

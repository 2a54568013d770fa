"""An encoder in a process of its own before an engine: rows, order, ends, deaths in the midst of a picture, silence."""

from __future__ import annotations

import os
import queue
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from fake_encoders import asked, build, picture

from headrace.contract.errors import EngineDead, QueueFull
from headrace.contract.request import Request, SamplingParams
from headrace.contract.result import TokenDelta
from headrace.contract.stats import EngineStats
from headrace.engine.client import DeltaSink
from headrace.engine.encoder import Encoder, KeptRows
from headrace.engine.encoder_process import EncoderProcess
from headrace.engine.encoding import EncodingClient

DEADLINE_S = 60.0


def until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.02)


class Engine:
    """Ends every request at once, with what it got of it. ``full``: refuses."""

    def __init__(self) -> None:
        self.got: list[Request] = []
        self.ends: list[tuple[str, str]] = []
        self.alive, self.full, self.gone = True, False, None
        self.stats = EngineStats()

    def submit(self, request: Request, sink: DeltaSink) -> None:
        if self.full:
            raise QueueFull("40 requests are waiting")
        self.got.append(request)
        sink(TokenDelta(request_id=request.request_id, finish_reason="length"))

    def abort(self, request_id: str) -> None:
        self.ends.append((request_id, "abort"))

    def stop(self, request_id: str) -> None:
        self.ends.append((request_id, "stop"))

    def profile(self, seconds: float) -> dict[str, dict[str, int]]:  # noqa: ARG002
        return {}

    def close(self) -> None:
        self.alive = False


class Asker:
    """A client over a fake engine, and the last deltas of what it was asked."""

    def __init__(self, folder: Path, timeout_s: float = DEADLINE_S, max_waiting: int = 10) -> None:
        self.engine = Engine()
        start = lambda flag: EncoderProcess(build, str(folder), give_up=flag)  # noqa: E731
        self.client = EncodingClient(self.engine, Encoder(start, timeout_s), max_waiting)
        self._ends: queue.Queue[TokenDelta] = queue.Queue()

    def ask(self, name: str, *pixels: bytes, shares: str = "") -> None:
        pictures = tuple(picture(shown) for shown in pixels)
        params = SamplingParams(max_tokens=1, seed=0)
        request = Request(request_id=name, prompt_token_ids=[1], sampling=params, pictures=pictures, shares=shares)
        self.client.submit(request, self._ends.put)

    def ended(self, count: int = 1) -> dict[str, Any]:
        """The next last deltas: how each ended, or its error."""
        deltas = [self._ends.get(timeout=DEADLINE_S) for _ in range(count)]
        return {delta.request_id: delta.error or delta.finish_reason for delta in deltas}


@pytest.fixture
def asker(tmp_path: Path) -> Iterator[Asker]:
    made = Asker(tmp_path)
    yield made
    made.client.close()
    assert not made.client.alive
    assert not made.engine.alive


def test_the_engine_gets_rows_and_a_picture_is_encoded_once(asker: Asker, tmp_path: Path) -> None:
    asker.ask("text")
    assert [request.request_id for request in asker.engine.got] == ["text"]  # at once: it has nothing to wait for
    asker.ask("one", b"cat!", b"dog!")
    assert asker.ended(2) == {"text": "length", "one": "length"}
    asker.ask("again", b"dog!")
    assert asker.ended() == {"again": "length"}
    assert [[p.rows for p in request.pictures] for request in asker.engine.got] == [[], [b"cat!", b"dog!"], [b"dog!"]]
    assert asked(tmp_path) == [b"cat!", b"dog!"]


def test_killed_in_the_midst_of_a_picture_it_comes_back_and_the_request_goes_on(asker: Asker, tmp_path: Path) -> None:
    first = asker.client.encoder_pid
    assert first is not None
    asker.ask("one", b"once")
    asker.ask("next", b"cat!")
    until(lambda: asked(tmp_path) == [b"once"])
    asker.ask("text")
    assert asker.ended() == {"text": "length"}  # a neighbour without pictures does not wait
    os.kill(first, signal.SIGKILL)
    assert asker.ended(2) == {"one": "length", "next": "length"}
    assert asked(tmp_path) == [b"once", b"once", b"cat!"]
    assert asker.client.encoder_pid != first


def test_a_picture_that_kills_it_twice_costs_its_own_requests_only(asker: Asker, tmp_path: Path) -> None:
    asker.ask("wait", b"once")
    until(lambda: asked(tmp_path) == [b"once"])
    asker.ask("fatal", b"fatal")
    asker.ask("choice", b"fatal", shares="fatal")
    asker.ask("good", b"cat!")
    os.kill(asker.client.encoder_pid or 0, signal.SIGKILL)
    ends = asker.ended(4)
    assert (ends.pop("wait"), ends.pop("good")) == ("length", "length")
    assert set(ends) == {"fatal", "choice"}
    assert all("died (exit code 3); tried 2 times" in words for words in ends.values())
    assert asked(tmp_path).count(b"fatal") == 2


def test_one_that_died_while_nobody_asked_is_replaced(asker: Asker) -> None:
    first = asker.client.encoder_pid
    os.kill(first or 0, signal.SIGKILL)
    until(lambda: asker.client.encoder_pid != first)
    asker.ask("one", b"cat!")
    assert asker.ended() == {"one": "length"}


def test_a_bad_picture_and_a_full_engine_are_told(asker: Asker) -> None:
    asker.ask("bad", b"bad")
    assert asker.ended() == {"bad": "a picture of nothing"}
    asker.engine.full = True
    asker.ask("full", b"cat!")
    assert asker.ended() == {"full": "queue: 40 requests are waiting"}


def test_ends_reach_those_that_wait_and_the_queue_is_bounded(tmp_path: Path) -> None:
    asker = Asker(tmp_path, max_waiting=2)
    try:
        asker.ask("current", b"once")
        until(lambda: asked(tmp_path) == [b"once"])
        asker.ask("queued", b"cat!")
        asker.ask("other", b"cat!")
        with pytest.raises(QueueFull, match="wait for the encoder"):
            asker.ask("more", b"cat!")
        asker.client.abort("queued")
        assert asker.ended() == {"queued": "abort"}
        asker.client.stop("current")
        os.kill(asker.client.encoder_pid or 0, signal.SIGKILL)
        assert asker.ended(2) == {"current": "stop", "other": "length"}
        assert [request.request_id for request in asker.engine.got] == ["other"]
        asker.client.abort("elsewhere")
        assert asker.engine.ends == [("elsewhere", "abort")]
    finally:
        asker.client.close()


def test_choices_come_after_the_one_they_share_with(asker: Asker, tmp_path: Path) -> None:
    asker.ask("before", b"once")
    until(lambda: asked(tmp_path) == [b"once"])
    asker.ask("first", b"cat!")
    asker.ask("second", shares="first")  # it needs no encoder, but must not overtake
    os.kill(asker.client.encoder_pid or 0, signal.SIGKILL)
    asker.ended(3)
    assert [request.request_id for request in asker.engine.got] == ["before", "first", "second"]


def test_silence_ends_at_the_deadline(tmp_path: Path) -> None:
    asker = Asker(tmp_path, timeout_s=0.5)
    try:
        os.kill(asker.client.encoder_pid or 0, signal.SIGSTOP)  # it can answer nothing, however long one waits
        asker.ask("one", b"cat!")
        assert asker.ended() == {"one": "the encoder: it gave no answer within 0.5 s; another one is being started"}
    finally:
        asker.client.close()


def test_closing_ends_what_waits(tmp_path: Path) -> None:
    asker = Asker(tmp_path)
    asker.ask("one", b"once")
    until(lambda: asked(tmp_path) == [b"once"])
    asker.ask("two", b"cat!")
    asker.client.close()
    assert set(asker.ended(2)) == {"one", "two"}
    with pytest.raises(EngineDead):
        asker.ask("late", b"cat!")


def test_nobody_waits_beyond_the_deadline_for_an_answer() -> None:
    """Polls are as long as nobody looks after the child, which a short deadline must not be rounded up to."""
    waits: list[int] = []

    class Silent:
        def poll(self, wait_ms: int, _: int = 0) -> bool:
            waits.append(wait_ms)
            time.sleep(wait_ms / 1000)
            return False

    encoder = object.__new__(EncoderProcess)
    encoder._socket, encoder._process = Silent(), SimpleNamespace(is_alive=lambda: True)  # type: ignore[assignment]
    assert encoder._receive(time.monotonic() + 0.02) is None
    assert max(waits, default=0) <= 20


def test_one_that_cannot_start_says_why() -> None:
    with pytest.raises(EngineDead, match="the encoder did not start: no such model"):
        Encoder(lambda flag: EncoderProcess(build, "nowhere", give_up=flag), DEADLINE_S)


def test_kept_rows_are_bounded_and_the_latest_stay() -> None:
    kept = KeptRows(most_bytes=8)
    for name in ("a", "b"):
        kept.keep(name, b"1234")
    assert kept.find("a") == b"1234"
    kept.keep("c", b"1234")
    assert (kept.find("a"), kept.find("b"), kept.find("c")) == (b"1234", None, b"1234")
    kept.keep("d", b"123456789")
    assert (kept.find("c"), kept.find("d")) == (None, b"123456789")


def test_rows_travel_with_a_picture() -> None:
    shown = msgspec.structs.replace(picture(b"cat!"), rows=b"rows")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(shown), type=type(shown)) == shown

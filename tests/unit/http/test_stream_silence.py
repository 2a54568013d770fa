"""When a stream gets a comment: by what its client heard last, whether or not tokens come. On a clock of the test's."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.api.http import reply as reply_file
from headrace.api.http.host import HostLimits
from headrace.api.http.reply import StreamReply
from headrace.api.protocol.sse import KEEP_ALIVE


class Answer:
    """A generation and its reply at once: every three seconds a token, of which ``told`` says whether it shows."""

    constrained = False
    outputs: tuple[()] = ()
    usage = None

    def __init__(self, told: str) -> None:
        self.left = list(told)
        self.now = 100.0
        self.waits: list[float] = []

    @property
    def finished(self) -> bool:
        return not self.left

    async def turn(self) -> None: ...

    async def news(self, timeout_s: float) -> list[str]:
        """One token, or none at all for a blank; then as long as was to be waited."""
        self.waits.append(timeout_s)
        sign = self.left.pop(0)
        self.now += timeout_s if sign == " " else 3.0
        return [] if sign == " " else [sign]

    def close(self) -> None: ...


def sent(told: str, monkeypatch: pytest.MonkeyPatch) -> tuple[list[bytes], Answer]:
    answer = Answer(told)
    monkeypatch.setattr(reply_file, "time", SimpleNamespace(monotonic=lambda: answer.now))
    reply: Any = SimpleNamespace(
        begin=lambda _: b"", news=lambda sign: b"" if sign == "-" else sign.encode(), end=lambda *_: b"end"
    )
    generation: Any = answer
    bodies: list[bytes] = []

    async def send(message: Any) -> None:
        bodies.append(message.get("body", b""))

    async def receive() -> Any:
        await asyncio.Event().wait()

    stream = StreamReply(generation, reply, HostLimits(keep_alive_s=10.0, write_timeout_s=1000.0), {})
    asyncio.run(stream({"type": "http"}, receive, send))
    assert bodies[0] == b""  # the start
    return bodies[1:], answer


def test_tokens_that_tell_nothing_do_not_keep_a_stream_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    bodies, _ = sent("a" + "-" * 9 + "b", monkeypatch)
    assert bodies == [b"a", KEEP_ALIVE, KEEP_ALIVE, b"b", b"end"]  # after 12 and 24 of 27 seconds


def test_a_stream_that_tells_something_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    bodies, answer = sent("a--b--c", monkeypatch)
    assert bodies == [b"a", b"b", b"c", b"end"]
    assert answer.waits == [10, 10, 7, 4, 10, 7, 4]  # silence counts from what was told last


def test_silence_itself_is_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    bodies, _ = sent("a- ", monkeypatch)
    assert bodies == [b"a", KEEP_ALIVE, b"end"]
    bodies, _ = sent("a   b", monkeypatch)
    assert bodies == [b"a", *[KEEP_ALIVE] * 3, b"b", b"end"]

"""Whole bodies in pieces: every byte once and in order, and each piece waits until there is room."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.api.http.host import HostLimits
from headrace.api.http.pieces import PIECE_BYTES, PiecedResponse, pieces
from headrace.api.http.reply import WholeReply


@pytest.mark.parametrize("length", [0, 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES])
def test_every_byte_is_sent_once_and_the_end_is_told_once(length: int) -> None:
    body = bytes(range(256)) * (length // 256) + b"x" * (length % 256)
    messages = list(pieces(body))
    assert b"".join(message["body"] for message in messages) == body
    assert max(len(message["body"]) for message in messages) <= PIECE_BYTES
    assert [message["more_body"] for message in messages] == [True] * (len(messages) - 1) + [False]


class Client:
    """Takes one message each time it is told to."""

    def __init__(self) -> None:
        self.room = asyncio.Semaphore(0)
        self.took: list[Any] = []

    async def send(self, message: Any) -> None:
        await self.room.acquire()
        self.took.append(message)

    async def receive(self) -> Any:
        await asyncio.Event().wait()


def whole_reply(value: str) -> WholeReply:
    async def turn() -> None: ...

    generation: Any = SimpleNamespace(turn=turn, finished=True, outputs=[], usage=None, close=lambda: None)
    reply: Any = SimpleNamespace(whole=lambda _outputs, _usage: value)
    return WholeReply(generation, reply, HostLimits(), {})


@pytest.mark.parametrize("kind", ["response", "reply"])
def test_a_large_answer_is_over_when_its_last_piece_is_taken_and_not_before(kind: str) -> None:
    async def run() -> None:
        value, client = "y" * (5 * PIECE_BYTES), Client()
        answer = whole_reply(value) if kind == "reply" else PiecedResponse(f'"{value}"')
        task = asyncio.create_task(answer({"type": "http"}, client.receive, client.send))
        for taken in range(7):  # its start and six pieces
            for _ in range(5):
                await asyncio.sleep(0)
            assert (len(client.took), task.done()) == (taken, False)
            client.room.release()
        await task
        assert b"".join(message.get("body", b"") for message in client.took).decode() == f'"{value}"'

    asyncio.run(run())

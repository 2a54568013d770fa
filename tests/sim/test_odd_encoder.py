"""An encoder that fails in a way nobody has thought of costs its own request; others are served by it, and after it."""

from __future__ import annotations

import queue
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from fake_encoders import picture

from headrace.contract.errors import EngineDead
from headrace.contract.picture import Picture
from headrace.contract.request import Request, SamplingParams
from headrace.contract.result import TokenDelta
from headrace.engine.encoder import Encoder, KeptRows
from headrace.engine.encoder_child import FromEncoder
from headrace.engine.encoder_process import EncoderProcess
from headrace.engine.encoding import EncodingClient

DEADLINE_S = 30.0


class Process:
    """Stands for an encoder's process; ``revived`` counts the attempts to begin another."""

    alive, pid = True, 1

    def rows(self, shown: Picture, _: float) -> bytes:
        if shown.pixels == b"odd":
            raise OSError("no descriptors are left")
        return shown.pixels

    def kill(self) -> None:
        """It ends."""

    close = kill


class Engine:
    """Ends every request at once; the first with pictures cannot even be sent."""

    alive, gone = True, None

    def __init__(self) -> None:
        self.refusals = [RuntimeError("cannot be sent")]

    def submit(self, request: Request, sink: Any) -> None:
        if self.refusals:
            raise self.refusals.pop()
        sink(TokenDelta(request_id=request.request_id, finish_reason="length"))

    def close(self) -> None:
        """Nothing runs."""


def test_whatever_an_encoder_raises_the_next_request_is_served() -> None:
    client, ends = EncodingClient(Engine(), Encoder(lambda _: Process(), 1.0), 10), queue.Queue[TokenDelta]()  # type: ignore[arg-type, return-value]
    told = []
    for number, pixels in enumerate((b"odd", b"refused", b"good")):
        params = SamplingParams(max_tokens=1, seed=0)
        request = Request(request_id=str(number), prompt_token_ids=[1], sampling=params, pictures=(picture(pixels),))
        client.submit(request, ends.put)
        last = ends.get(timeout=DEADLINE_S)
        told.append(last.error or last.finish_reason)
    assert told == ["OSError: no descriptors are left", "RuntimeError: cannot be sent", "length"]
    client.close()


def test_one_that_cannot_be_started_again_for_whatever_reason_is_told_of_once() -> None:
    starts: list[Any] = [Process()]
    encoder = Encoder(lambda _: starts.pop(), 1.0, kept=KeptRows())
    encoder._process.alive = False  # type: ignore[misc]
    for _ in range(2):
        encoder.revive()  # there is nothing to start
    assert not encoder._tell_failure


def test_one_that_cannot_be_understood_is_killed() -> None:
    process, killed = EncoderProcess.__new__(EncoderProcess), []
    process._number, process._given_up, process._decoder = 0, False, msgspec.msgpack.Decoder(FromEncoder)
    process._socket = SimpleNamespace(poll=lambda *_: 1, send=lambda *_: None, recv=lambda: b"\xc1")  # type: ignore[assignment]
    process._process = SimpleNamespace(is_alive=lambda: True, kill=lambda: killed.append(1))  # type: ignore[assignment]
    with pytest.raises(EngineDead, match="its process cannot be understood"):
        process.rows(picture(b"cat!"), DEADLINE_S)
    assert (killed, process.alive) == ([1], False)

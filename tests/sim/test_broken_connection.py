"""A hand-off's connection breaks while both engines live: what it has swallowed is missed, and no slot stays taken."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from role_engines import IdCodec, MovingWorker, done, engine_with, item, until

from headrace.contract.handoff import HandedOver
from headrace.contract.request import Request, SamplingParams
from headrace.engine.hand_over import SWALLOWED_WORDS
from headrace.engine.hand_over_wire import Welcome
from headrace.engine.remote_giver import RemoteGiver
from headrace.engine.remote_taker import RemoteTaker


class Wire:
    """Passes bytes on between a giver and a taker, or swallows those of one direction; cut, it lets them meet again."""

    def __init__(self, outer: Path, inner: Path) -> None:
        self._inner = str(inner)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(outer))
        self._listener.listen()
        self._ends: list[socket.socket] = []
        self._swallows: dict[bool, threading.Event] = {}
        self.swallowed = b""
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                giver, _ = self._listener.accept()
                taker = socket.socket(socket.AF_UNIX)
                taker.connect(self._inner)
                self._ends = [giver, taker]
                self._swallows = {True: threading.Event(), False: threading.Event()}
                for source, target, way in ((giver, taker, True), (taker, giver, False)):
                    given = (source, target, self._swallows[way])
                    threading.Thread(target=self._pump, args=given, daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, swallows: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if swallows.is_set():
                    self.swallowed += data
                else:
                    target.sendall(data)

    def swallow(self, *, to_taker: bool) -> None:
        """From now on, until it is cut."""
        self._swallows[to_taker].set()

    def cut(self) -> None:
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()


class Ends:
    def __init__(self, folder: Path) -> None:
        self.taker = RemoteTaker(f"ipc://{folder / 'inner'}", IdCodec(), capacity=2)
        self.wire = Wire(folder / "outer", folder / "inner")
        self.giver = RemoteGiver(f"ipc://{folder / 'outer'}", IdCodec(), silence_s=30.0)
        until(lambda: self.giver.has_room_for("any"))

    def offer(self, name: str) -> None:
        assert self.giver.offer(item(name, [[1]], done([1]), [0]))

    def swallowed(self, name: str) -> None:
        """Waits until a message with this name is gone for good, then the connection breaks."""
        until(lambda: name.encode() in self.wire.swallowed)
        self.wire.cut()


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[Ends]:
    both = Ends(tmp_path)
    yield both
    both.giver.leave()
    both.taker.close()
    both.wire.close()


def test_an_offer_that_was_swallowed_is_missed_and_gives_its_slot_back(ends: Ends) -> None:
    ends.offer("arrived")
    until(lambda: ends.taker.holds("arrived"))
    ends.wire.swallow(to_taker=True)
    ends.offer("swallowed")
    ends.swallowed("swallowed")
    [lost] = until(ends.giver.take_lost)
    assert (lost.request.request_id, lost.content, lost.output_ids) == ("swallowed", None, (4,))
    assert ends.giver._slots == {"arrived"}
    assert until(ends.taker.take).request.request_id == "arrived"
    until(lambda: not ends.giver._slots)  # told under the name that it had before
    ends.offer("after")
    assert until(ends.taker.take).request.request_id == "after"
    assert ends.giver.take_lost() == []


def test_the_news_of_a_taken_one_that_was_swallowed_is_told_again(ends: Ends) -> None:
    ends.offer("taken")
    until(lambda: ends.taker.holds("taken"))
    ends.wire.swallow(to_taker=False)
    ends.taker.take()
    ends.swallowed("taken")
    until(lambda: not ends.giver._slots)
    assert ends.giver.take_lost() == []


def test_a_drop_that_was_swallowed_is_told_again(ends: Ends) -> None:
    assert ends.giver.send_ahead("dropped", [(0, 0)], done([1]))
    until(lambda: any("dropped" in known.pieces for known in ends.taker._givers.values()))
    ends.wire.swallow(to_taker=True)
    ends.giver.drop("dropped")
    ends.swallowed("dropped")
    until(lambda: not ends.giver._slots)
    assert not any(known.pieces for known in ends.taker._givers.values())


def test_a_drop_of_what_was_forgotten_meanwhile_gives_its_slot_back(ends: Ends) -> None:
    assert ends.giver.send_ahead("dropped", [(0, 0)], done([1]))
    until(lambda: any("dropped" in known.pieces for known in ends.taker._givers.values()))
    for known in ends.taker._givers.values():
        known.pieces.clear()  # as after a long silence
    ends.giver.drop("dropped")
    until(lambda: not ends.giver._slots)


def test_what_a_silent_giver_is_asked_for_again_is_remembered_longer_than_its_pieces(ends: Ends) -> None:
    ends.offer("taken")
    until(ends.taker.take)
    [known] = ends.taker._givers.values()
    known.pieces["under way"] = []
    known.heard_s = time.monotonic() - 25
    ends.taker._forget_silent()
    assert (list(ends.taker._givers.values()), known.pieces) == ([known], {})
    known.heard_s = time.monotonic() - 200
    ends.taker._forget_silent()
    assert (ends.taker._givers, ends.taker._came) == ({}, {})


def test_an_answer_to_an_older_greeting_says_nothing_of_what_was_offered_again(ends: Ends) -> None:
    ends.giver._stopping.set()  # its thread is over: this one speaks for it
    ends.giver._thread.join(30)
    ends.giver._offers["again"] = item("again", [], None, []), 7
    answer = lambda number: ends.giver._welcomed(Welcome(ends.giver._epoch, 2, number=number, missing=["again"]), 0.0)  # noqa: E731
    answer(6)
    assert ends.giver.take_lost() == []
    answer(7)
    assert [lost.request.request_id for lost in ends.giver.take_lost()] == ["again"]


@pytest.mark.parametrize("recalls", [False, True])
def test_its_request_ends_or_is_offered_again_without_its_kv(ends: Ends, recalls: bool) -> None:
    engine = engine_with("prompt", ends.giver, MovingWorker())
    ends.taker.recalls = recalls
    until(lambda: ends.giver._recalls == recalls)  # its next greeting says so
    deltas: list[Any] = []

    def ticking(condition: Callable[[], Any]) -> Any:
        return until(lambda: (deltas.extend(engine.tick()), condition())[1])

    ends.wire.swallow(to_taker=True)
    engine.submit(Request(request_id="swallowed", prompt_token_ids=[1, 2], sampling=SamplingParams(max_tokens=6)))
    ticking(lambda: b"swallowed" in ends.wire.swallowed and "swallowed" in ends.giver._offers)
    ends.wire.cut()
    if not recalls:
        ticking(lambda: deltas[-1].finish_reason)
        assert deltas[-1].error == SWALLOWED_WORDS
        return
    came: HandedOver = ticking(ends.taker.take)
    assert came.request.request_id == "swallowed"
    assert str(came.content.exception()).endswith(SWALLOWED_WORDS)
    assert not any(delta.finish_reason for delta in deltas)

"""How an engine ends: callers are told first, then every part is closed, whatever becomes of the others."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from headrace._core import Scheduler
from headrace.contract.errors import EngineDead, GroupBroken
from headrace.contract.request import Request, SamplingParams
from headrace.contract.result import TokenDelta
from headrace.engine.client import Sinks
from headrace.engine.engine import Engine
from headrace.engine.lifecycle import EngineLoop
from headrace.engine.process import ProcessClient
from headrace.worker.device import MAX_QUEUED, DeviceThread
from headrace.worker.fake import FakeWorker

DEADLINE_S = 30.0
PARTS = ("kv", "worker", "cadence", "roster", "observer")


def ask(name: str) -> Request:
    return Request(request_id=name, prompt_token_ids=[1, 2], sampling=SamplingParams(max_tokens=90, seed=0))


class Watched:
    """An engine whose parts note that they were closed; those in ``broken`` raise then."""

    def __init__(self, *broken: str) -> None:
        self.closed: list[str] = []
        self.engine = Engine(Scheduler(num_blocks=50, block_size=4), FakeWorker())
        self.engine._observer = MagicMock()
        places = {part: getattr(self.engine, f"_{part}", None) or self.engine.worker for part in PARTS}
        for part, place in places.items():
            place.close = self._closing(part, part in broken)

    def _closing(self, part: str, broken: bool) -> Any:
        def close() -> None:
            self.closed.append(part)
            if broken:
                raise RuntimeError(f"{part} cannot be closed")

        return close


@pytest.mark.parametrize("broken", [(), ("kv",), ("worker", "cadence"), PARTS], ids=str)
def test_every_part_is_closed_whatever_becomes_of_the_others(broken: tuple[str, ...]) -> None:
    watched, told = Watched(*broken), threading.Event()
    ends: list[TokenDelta] = []

    def take(deltas: list[TokenDelta]) -> None:
        ends.extend(delta for delta in deltas if delta.finish_reason)
        told.set()
        loop._closing.wait(DEADLINE_S)  # else it might come to its own end first

    loop = EngineLoop(watched.engine, take)
    watched.engine.submit(ask("a"))
    assert told.wait(DEADLINE_S)
    loop.close()
    assert not loop.alive
    assert [(end.request_id, end.finish_reason) for end in ends] == [("a", "abort")]
    assert watched.closed == list(PARTS)


def test_callers_are_told_before_anything_is_closed() -> None:
    watched, told, first = Watched(), threading.Event(), []
    watched.engine._kv.close = lambda: first.append(told.wait(DEADLINE_S))  # type: ignore[method-assign]
    watched.engine.worker.collect = None  # type: ignore[assignment, method-assign]
    watched.engine.core = None  # type: ignore[assignment]  # the loop fails
    watched.engine.submit(ask("a"))
    loop = EngineLoop(watched.engine, lambda deltas: told.set() if deltas[-1].error else None)
    loop._thread.join(DEADLINE_S)
    assert (loop.alive, first) == (False, [True])


def test_one_who_was_still_at_the_door_is_told_though_the_door_is_broken() -> None:
    watched = Watched()
    watched.engine.submit(ask("a"))
    watched.engine._drain = None  # type: ignore[assignment, method-assign]
    [last] = watched.engine.close("error", "broken")
    assert (last.request_id, last.finish_reason, last.error) == ("a", "error", "broken")


def test_one_whose_end_fails_in_the_core_is_told_once_all_the_same() -> None:
    watched = Watched()
    for name in ("a", "b"):
        watched.engine.submit(ask(name))
    watched.engine.tick()
    watched.engine._roster.core = SimpleNamespace(finish=None)  # type: ignore[assignment]
    assert sorted(last.request_id for last in watched.engine.end("error", "broken")) == ["a", "b"]
    assert watched.engine.end() == []


def test_a_group_that_broke_does_not_keep_its_parts_open() -> None:
    watched = Watched()
    watched.engine.submit(ask("a"))
    watched.engine.tick()
    assert watched.engine._pending is not None

    def broken(*_: Any) -> None:
        raise GroupBroken("rank 1 is gone")

    watched.engine.worker.collect = broken  # type: ignore[assignment, method-assign]
    assert [last.finish_reason for last in watched.engine.close()] == ["abort"]
    assert watched.closed == list(PARTS)


def test_a_device_that_is_stuck_is_left_behind() -> None:
    device, gate, begun = DeviceThread(), threading.Event(), threading.Event()
    device.launch(lambda: (begun.set(), gate.wait(DEADLINE_S)))
    assert begun.wait(DEADLINE_S)
    for _ in range(MAX_QUEUED):
        device.launch(lambda: None)
    device.close(timeout_s=0.01)
    gate.set()


class Dying(Sinks):
    """Its engine dies when a sink is added: ``before`` or after the sweep of those who wait."""

    def __init__(self, client: ProcessClient, before: bool) -> None:
        super().__init__()
        self._client, self._before = client, before

    def add(self, request_id: str, sink: Any) -> None:
        self._client._dead = "died"
        if not self._before:
            self.fail_all("died")
        super().add(request_id, sink)
        if self._before:
            self.fail_all("died")


@pytest.mark.parametrize("before", [True, False])
def test_who_listens_to_an_engine_that_dies_this_moment_hears_of_it_once(before: bool) -> None:
    client, heard = ProcessClient.__new__(ProcessClient), []
    client._dead, client._closing, client._sinks = None, threading.Event(), Dying(client, before)
    if before:
        client.listen("a", heard.append)
        assert [delta.error for delta in heard] == ["died"]
    else:
        with pytest.raises(EngineDead, match="died"):
            client.listen("a", heard.append)
        client._sinks.fail_all("died")
        assert heard == []

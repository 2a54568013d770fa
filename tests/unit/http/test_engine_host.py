"""EngineHost while its engine is gone: what is logged, and that asking it to stop ends the wait for another one."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.api.http import host as host_module
from headrace.api.http.host import EngineHost
from headrace.contract.errors import EngineDead

DEADLINE_S = 30.0
WHY = "rank 1 of 2: the engine process died (exit code -9)"


def dead_engine() -> Any:
    return SimpleNamespace(client=SimpleNamespace(alive=False, gone=WHY), close=lambda: None)


class Starts:
    """The first start is at once; later ones take until they are given up."""

    def __init__(self) -> None:
        self.give_up, self.waiting = threading.Event(), threading.Event()
        self.ended: list[bool] = []

    def __call__(self) -> Any:
        if self.ended or self.waiting.is_set():
            raise AssertionError("started once too often")
        if not hasattr(self, "first"):
            self.first = dead_engine()
            return self.first
        self.waiting.set()
        self.ended.append(self.give_up.wait(DEADLINE_S))
        raise EngineDead("the engine is not needed any more")


def test_a_drain_ends_the_wait_for_an_engine_that_starts_again(caplog: pytest.LogCaptureFixture) -> None:
    starts = Starts()
    host = EngineHost(starts, ["m"], give_up=starts.give_up)

    async def run() -> bool:
        host.watch()
        assert await asyncio.to_thread(starts.waiting.wait, DEADLINE_S)
        return await host.drain(DEADLINE_S)

    with caplog.at_level(logging.ERROR, "headrace.serve"):
        assert asyncio.run(run())  # its end waits for every thread
    assert starts.ended == [True]
    assert f"the engine died ({WHY}); starting it again" in caplog.text


def test_whatever_a_start_fails_with_another_follows(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_module, "WATCH_PERIOD_S", 0.0)
    back = SimpleNamespace(client=SimpleNamespace(alive=True, gone=None), close=lambda: None)
    starts: list[Any] = [dead_engine(), OSError(28, "No space left on device"), back]

    def start() -> Any:
        made = starts.pop(0)
        if isinstance(made, Exception):
            raise made
        return made

    host = EngineHost(start, ["m"])

    async def run() -> None:
        host.watch()
        deadline = time.monotonic() + DEADLINE_S
        while host.llm is not back:
            assert time.monotonic() < deadline, "nobody started it again"
            await asyncio.sleep(0.005)
        host.close()

    with caplog.at_level(logging.ERROR, "headrace.serve"):
        asyncio.run(run())
    assert "No space left on device" in caplog.text


def test_an_engine_that_comes_when_nobody_waits_is_closed() -> None:
    closed: list[bool] = []
    late = SimpleNamespace(client=SimpleNamespace(alive=True, gone=None), close=lambda: closed.append(True))
    host = EngineHost(lambda: late, ["m"])  # type: ignore[arg-type, return-value]
    host.close()
    with pytest.raises(EngineDead, match="not needed"):
        host._start_again()
    assert closed == [True, True]

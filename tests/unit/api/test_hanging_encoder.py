"""An encoder's process that hangs is replaced; one that is only busy with others, or still loads, is not."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest

from headrace.api.embedding_process import EmbeddingProcess
from headrace.contract.errors import EngineDead

SOON_S = 0.01


class Pool:
    """Stands for a process that answers what a test says."""

    def __init__(self) -> None:
        self.calls: list[Future[Any]] = []
        self.killed = False
        self._processes = {1: self}

    def submit(self, *_: Any) -> Future[Any]:
        self.calls.append(Future())
        self.calls[-1].set_running_or_notify_cancel()
        return self.calls[-1]

    def kill(self) -> None:
        self.killed = True
        for call in self.calls:
            if not call.done():
                call.set_exception(BrokenProcessPool())


class Encoder(EmbeddingProcess):
    def __init__(self) -> None:
        self.pools: list[Pool] = []
        self._folder, self._num_threads, self._leaving = Path(), 1, False
        self._answers, self._loaded, self._load_by_s = 0, None, 0.0
        self._pool = self._start()

    def _start(self) -> Any:
        self.pools.append(Pool())
        return self.pools[-1]


@pytest.fixture
def encoder() -> Encoder:
    """Its weights are there."""
    made = Encoder()
    made._begin_loading().set_result([])
    return made


def late(encoder: Encoder) -> None:
    with pytest.raises(EngineDead, match=f"did not answer within {SOON_S:g} s"):
        asyncio.run(encoder.vectors([[1]], SOON_S))


def test_one_that_answers_nothing_is_ended_and_replaced(encoder: Encoder) -> None:
    async def two() -> None:
        waiting = asyncio.create_task(encoder.vectors([[2]]))
        await asyncio.sleep(0)
        with pytest.raises(EngineDead, match="did not answer"):
            await encoder.vectors([[1]], SOON_S)
        with pytest.raises(EngineDead, match="it is being started again"):
            await waiting

    asyncio.run(two())
    first, second = encoder.pools
    assert (first.killed, second.killed) == (True, False)
    [load] = second.calls
    load.set_result([])

    async def served() -> list[list[float]]:
        asyncio.get_running_loop().call_soon(lambda: second.calls[-1].set_result([[0.5]]))
        return await encoder.vectors([[1]])

    assert asyncio.run(served()) == [[0.5]]


def test_one_that_answered_somebody_meanwhile_is_only_busy(encoder: Encoder) -> None:
    async def behind() -> None:
        first = asyncio.create_task(encoder.vectors([[2]]))
        second = asyncio.create_task(encoder.vectors([[1]], SOON_S))
        await asyncio.sleep(0)
        encoder.pools[0].calls[1].set_result([[0.5]])
        assert await first == [[0.5]]
        with pytest.raises(EngineDead, match="did not answer"):
            await second

    asyncio.run(behind())
    assert [pool.killed for pool in encoder.pools] == [False]


def test_one_that_loads_has_time_for_it() -> None:
    encoder = Encoder()
    late(encoder)  # the first request has it read its weights
    assert [pool.killed for pool in encoder.pools] == [False]
    encoder._load_by_s = 0.0
    late(encoder)
    assert [pool.killed for pool in encoder.pools] == [True, False]


def test_one_that_hangs_at_the_servers_end_has_no_successor(encoder: Encoder) -> None:
    encoder.leave()
    late(encoder)
    assert [pool.killed for pool in encoder.pools] == [True]

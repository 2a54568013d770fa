"""Closing while something is under way: no socket goes under a thread that uses it, and no thread waits for ever."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import msgspec
import numpy as np
import zmq
from kv_values import key_of

from headrace.kv.client import RemoteStore
from headrace.kv.connector import ConnectorCounts
from headrace.kv.host_memory import HostMemory
from headrace.kv.neighbours import Neighbours
from headrace.kv.records import RecordKind, RecordSpec
from headrace.kv.saver import MOST_BATCHES, Grain, Saver
from headrace.kv.segment import Bytes

PATIENCE_S = 60.0
NAMES = [(key_of(1), 0)]


def test_a_call_under_way_ends_with_its_answer_and_then_the_context_goes() -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as server, ThreadPoolExecutor(1) as threads:
        server.linger = 0
        server.bind("tcp://127.0.0.1:*")
        store = RemoteStore(server.getsockopt_string(zmq.LAST_ENDPOINT), timeout_s=PATIENCE_S)
        held = threads.submit(store.has, NAMES)
        assert server.poll(PATIENCE_S * 1000)
        client, header = server.recv_multipart()
        store.close()
        assert not store._context.closed
        number = msgspec.msgpack.decode(header)["number"]
        server.send_multipart([client, msgspec.msgpack.encode({"t": "held", "number": number, "held": [True]})])
        assert held.result(PATIENCE_S) == [True]
        assert store._context.closed
        assert store.has(NAMES) == [False]
        store.close()


class StuckStore:
    """A put that lasts until it is let go."""

    fast_lookups = True

    def __init__(self) -> None:
        self.entered, self.go, self.puts = threading.Event(), threading.Event(), 0

    def has(self, keys: Sequence[tuple[bytes, int]]) -> list[bool]:
        return [False] * len(keys)

    def put(self, key: bytes, kind: int, payload: Bytes, **fields: object) -> bool:
        del key, kind, payload, fields
        self.puts += 1
        self.entered.set()
        return self.go.wait(PATIENCE_S)


class ReadyMover:
    """Copies that are there at once."""

    def read(self, grains: Sequence[Sequence[int]]) -> Future[list[dict[int, Bytes]]]:
        done: Future[list[dict[int, Bytes]]] = Future()
        done.set_result([{0: np.zeros(8, np.uint8)} for _ in grains])
        return done


def test_a_saver_with_a_full_queue_ends_though_its_store_is_slow() -> None:
    store, tally = StuckStore(), ConnectorCounts()
    mover: Any = ReadyMover()
    saver = Saver(store, [RecordSpec(RecordKind.BLOCK, (0,), 8)], mover, tally)  # type: ignore[arg-type]

    def add(number: int) -> None:
        saver.add(Grain(key_of(number), bytes(16), 0, 1, [1]))
        saver.add(Grain(key_of(1000 + number), bytes(16), 0, 1, [1]))
        saver.flush()

    add(0)
    assert store.entered.wait(PATIENCE_S)
    for number in range(1, MOST_BATCHES + 1):
        add(number)
    assert tally.dropped == 0
    saver.close(timeout_s=0.05, grace_s=0.0)
    assert tally.dropped == 2 * MOST_BATCHES
    store.go.set()
    saver._thread.join(PATIENCE_S)
    assert not saver._thread.is_alive()
    assert (store.puts, tally.saved) == (1, 1)  # not the second one of the batch that was under way
    assert saver._budget.take(saver._budget.limit_bytes)


def test_an_engine_that_is_asked_for_after_the_end_leaves_no_connection() -> None:
    neighbours = Neighbours(HostMemory(1 << 20), "tcp://127.0.0.1:9", "tcp://127.0.0.1:*", timeout_s=0.01)
    before = neighbours._engine("tcp://127.0.0.1:9")
    neighbours.close()
    after = neighbours._engine("tcp://127.0.0.1:10")
    assert before._context.closed
    assert after._context.closed
    assert after.has(NAMES) == [False]

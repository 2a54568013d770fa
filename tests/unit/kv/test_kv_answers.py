"""What one answer of a server may hold: a small message that asks for much gets a bounded part of it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
from kv_servers import on_a_thread
from kv_values import key_of, payload_of, put

from headrace.kv import wire
from headrace.kv.client import RemoteStore
from headrace.kv.host_memory import HostMemory
from headrace.kv.local import LocalStore
from headrace.kv.neighbours import MemoryServer
from headrace.kv.records import RecordKind, RecordSpec
from headrace.kv.segment import MOST_VALUE_BYTES
from headrace.kv.server import StoreServer

LOOPBACK = "tcp://127.0.0.1:*"
KEY = key_of(1)


def ask(address: str, lease: int, times: int, **fields: object) -> tuple[Any, int]:
    """What is answered to a Get of one name many times, and the frames that follow."""
    message = {"t": "get", "number": 1, "lease": lease, "names": [(KEY, 0)] * times, **fields}
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.connect(address)
        socket.send(msgspec.msgpack.encode(message))
        assert socket.poll(60_000)
        header, *frames = socket.recv_multipart()
    return msgspec.msgpack.decode(header), len(frames)


def test_any_value_fits_alone_and_what_is_too_much_does_not() -> None:
    most = wire.MOST_FRAME_BYTES
    assert wire.that_fit([MOST_VALUE_BYTES]) == [True]
    assert wire.that_fit([most - 2, 3, 2, 0, 1]) == [True, False, True, True, False]
    assert wire.that_fit([]) == []


def test_a_store_reads_no_more_for_one_message_than_an_answer_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "MOST_FRAME_BYTES", 12_000)
    store = LocalStore(tmp_path, 64 << 20)
    put(store, 1)
    with on_a_thread(StoreServer(store, LOOPBACK)) as address, closing(RemoteStore(address, timeout_s=60)) as client:
        lease = client.match([KEY], [RecordSpec(RecordKind.BLOCK, (0,), 5000)]).lease
        answer, frames = ask(address, lease, 500)
        assert (answer["there"], frames) == ([True, True] + [False] * 498, 2)
        parts, frames = ask(address, lease, 3, ranges=[(0, 10)] * 3)  # read whole
        assert (parts["there"], frames) == ([True, True, False], 2)
        assert store.counts.hits == 4
        assert client.get_leased(lease, KEY, 0) is not None
        assert client.facts()["requests_gets_beyond_answer"] == 499


def test_an_engine_s_memory_gives_no_more_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MOST_FRAME_BYTES", 12_000)
    memory = HostMemory(1 << 20)
    memory.put(KEY, 0, payload_of(KEY))
    with on_a_thread(MemoryServer(memory, LOOPBACK)) as address:
        answer, frames = ask(address, 0, 500)
    assert (answer["there"], frames) == ([True, True] + [False] * 498, 2)

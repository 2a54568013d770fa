"""Windows in engines' memories: bounds, ages, the directory, pulls from engine to engine, and engines killed -9."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import zmq
from kv_servers import on_a_thread
from kv_values import key_of, payload_of

from headrace.api.kv_host import check_host, directory_of, host_bytes
from headrace.config import EngineConfig, resolve
from headrace.contract.errors import ConfigError, StoreError
from headrace.kv.ages import AGENT, CHAT, DAY_S
from headrace.kv.client import RemoteStore
from headrace.kv.directory import MOST_HOLDERS, Directory
from headrace.kv.host_memory import HostMemory
from headrace.kv.host_tier import HostTier, WindowReader
from headrace.kv.local import LocalStore
from headrace.kv.neighbours import Neighbours
from headrace.kv.reading import DirectReader, Wanted
from headrace.kv.records import Match, RecordKind, RecordSpec
from headrace.kv.server import StoreServer

BLOCK = RecordSpec(RecordKind.BLOCK, (0,), 5000)
STATE = RecordSpec(RecordKind.STATE, (1,), 5000, (1,), Match.TRAILING, 200)
SPECS = (BLOCK, STATE)
LOOPBACK = "tcp://127.0.0.1:*"
KEYS = [key_of(number) for number in range(4)]
FIELDS: dict[str, Any] = {"tenant": bytes(16), "turn": 1, "ttl_class": CHAT}
PATIENCE_S = 60.0


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    server = StoreServer(LocalStore(folder, 64 << 20, segment_bytes=50_000), LOOPBACK)
    with on_a_thread(server) as address:
        yield address


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    with serving(tmp_path) as where:
        yield where


@pytest.fixture
def tiers() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def tier(
    stack: ExitStack, address: str, *, stores_windows: bool = False, engine_timeout_s: float = PATIENCE_S
) -> HostTier:
    memory = HostMemory(1 << 20)
    neighbours = Neighbours(memory, address, LOOPBACK, timeout_s=PATIENCE_S, engine_timeout_s=engine_timeout_s)
    made = HostTier(RemoteStore(address, timeout_s=PATIENCE_S), memory, neighbours, stores_windows=stores_windows)
    stack.callback(made.close)
    return made


def fill(store: Any, *, windows: tuple[int, ...] = (0, 1, 2, 3)) -> None:
    for depth, key in enumerate(KEYS):
        assert store.put(key, RecordKind.BLOCK, payload_of(key), depth=depth, **FIELDS)
        if depth in windows:
            assert store.put(key, RecordKind.STATE, payload_of(key + b"s"), depth=depth, **FIELDS)


def read(store: Any, lease: int, grain: int) -> bool:
    """Whether a window is there; fails when it is, and wrong."""
    value = store.get_leased(lease, KEYS[grain], int(RecordKind.STATE))
    assert value is None or np.array_equal(value, payload_of(KEYS[grain] + b"s")), "a wrong byte"
    return value is not None


def test_what_was_used_longest_ago_leaves_a_full_memory() -> None:
    memory = HostMemory(3 * 5000)
    for key in KEYS[:3]:
        assert memory.put(key, 2, payload_of(key))
    assert memory.get(KEYS[0], 2) is not None
    assert memory.put(KEYS[3], 2, payload_of(KEYS[3]))
    assert memory.has([(key, 2) for key in KEYS]) == [True, False, True, True]
    assert not memory.put(b"large", 2, np.zeros(15_001, np.uint8))
    assert (memory.used_bytes, memory.evicted, len(memory)) == (15_000, 1, 3)
    memory.put(KEYS[3], 2, payload_of(KEYS[3]))
    assert memory.used_bytes == 15_000


def test_memory_forgets_by_the_class_of_age() -> None:
    now = [0.0]
    memory = HostMemory(1 << 20, lambda: now[0])
    memory.put(KEYS[0], 2, payload_of(KEYS[0]), CHAT)
    memory.put(KEYS[1], 2, payload_of(KEYS[1]), AGENT)
    now[0] = 3.5 * DAY_S
    assert memory.has([(KEYS[0], 2), (KEYS[1], 2)]) == [True, False]
    assert memory.get(KEYS[1], 2) is None
    assert memory.used_bytes == 5000


def test_a_directory_is_bounded_and_forgets_who_left() -> None:
    directory, names = Directory(most_names=2), [(key, 2) for key in KEYS[:3]]
    directory.announce("tcp://a:1", names)
    assert directory.find(names) == [[], ["tcp://a:1"], ["tcp://a:1"]]
    for number in range(6):
        directory.announce(f"tcp://b:{number}", names[2:])
    assert directory.find(names[2:]) == [[f"tcp://b:{5 - i}" for i in range(MOST_HOLDERS)]]
    directory.withdraw("tcp://b:5")
    directory.withdraw("tcp://a:1")
    assert directory.find(names) == [[], [], ["tcp://b:4", "tcp://b:3", "tcp://b:2"]]
    assert len(directory) == 1


def test_the_age_of_a_directory_s_news_is_known() -> None:
    now = [7.0]
    directory = Directory(clock=lambda: now[0])
    assert directory.age_s is None
    directory.announce("tcp://a:1", [(KEYS[0], 2)])
    now[0] += 30.0
    assert directory.age_s == 30.0
    directory.withdraw("tcp://a:1")
    assert directory.age_s == 0.0


def test_a_directory_that_is_behind_is_seen_in_the_counts(address: str, tiers: ExitStack) -> None:
    first, second = tier(tiers, address), tier(tiers, address)
    fill(first)
    first.memory.clear()
    second.match(KEYS, SPECS)
    counts = second.counts()
    assert counts["directory_told"] == 4
    assert counts["directory_held"] == 0


def test_a_window_is_pulled_from_the_engine_that_has_it(address: str, tiers: ExitStack) -> None:
    first, second = tier(tiers, address), tier(tiers, address)
    fill(first)
    store = RemoteStore(address, timeout_s=PATIENCE_S)
    tiers.callback(store.close)
    assert store.has([(KEYS[3], int(kind)) for kind in (RecordKind.BLOCK, RecordKind.STATE)]) == [True, False]
    assert store.match(KEYS, SPECS).grains == 0  # the store alone has no windows
    found = second.match(KEYS, SPECS)
    assert found.grains == 4
    assert second.get_leased(found.lease, KEYS[0], int(RecordKind.BLOCK)) is not None
    assert read(second, found.lease, 2)
    assert read(second, found.lease, 3)
    second.release(found.lease)
    counts = {"host_hits": 0, "host_pulled": 2, "host_kept": 0, "host_lost": 0, "window_lookups": 1, "window_hits": 1}
    assert second.counts() == counts | {"directory_told": 4, "directory_held": 4}
    assert read(second, 0, 3)  # from its own memory now
    assert second.counts()["host_hits"] == 1
    assert second.has([(KEYS[3], 0), (KEYS[3], 2), (KEYS[0], 2)]) == [True, True, False]


def test_a_shorter_prefix_is_found_where_a_window_is_missing(address: str, tiers: ExitStack) -> None:
    first, second = tier(tiers, address), tier(tiers, address)
    fill(first, windows=(0, 1, 2))
    assert second.match(KEYS, SPECS).grains == 3
    counts = second.counts()
    assert (counts["window_lookups"], counts["window_hits"]) == (1, 0)  # blocks of a fourth grain were there
    assert second.match(KEYS, SPECS, again=True).grains == 3
    assert second.counts()["window_lookups"] == 1
    assert first.match(KEYS, SPECS).grains == 3


def test_what_the_store_has_is_found_without_a_memory(address: str, tiers: ExitStack) -> None:
    first, second = (tier(tiers, address, stores_windows=True) for _ in range(2))
    fill(first)
    first.close()
    found = second.match(KEYS, SPECS)
    assert found.grains == 4
    assert read(second, found.lease, 3)
    assert second.counts()["host_pulled"] == 0


def test_blocks_come_from_another_reader_and_windows_from_memory(address: str, tiers: ExitStack) -> None:
    first, second = tier(tiers, address), tier(tiers, address)
    fill(first, windows=(0, 3))
    names = [Wanted(key, kind, 5000) for key in KEYS for kind in (0, 2)]
    lease = second.match(KEYS, (BLOCK,)).lease
    second.neighbours.find([(key, 2) for key in KEYS])  # type: ignore[union-attr]
    values = list(WindowReader(second, DirectReader(second)).read(lease, names, time.monotonic() + PATIENCE_S))
    assert [value is not None for value in values] == [True, True, True, False, True, False, True, True]
    for name, value in zip(names, values):
        expected = payload_of(name.key if name.kind == 0 else name.key + b"s")
        assert value is None or np.array_equal(value, expected)


def test_a_window_that_goes_between_look_up_and_read_is_a_miss(address: str, tiers: ExitStack) -> None:
    first, second = tier(tiers, address), tier(tiers, address)
    fill(first)
    found = second.match(KEYS, SPECS)
    first.memory.clear()
    assert not read(second, found.lease, 3)
    assert second.counts()["host_lost"] == 1


def test_an_engine_s_memory_takes_nothing_and_gives_no_parts(address: str, tiers: ExitStack) -> None:
    holder = tier(tiers, address)
    fill(holder)
    assert holder.neighbours is not None
    client = RemoteStore(holder.neighbours.address, timeout_s=PATIENCE_S)
    tiers.callback(client.close)
    assert not client.put(key_of(9), 2, payload_of(key_of(9)), tenant=bytes(16), depth=0)
    assert client.get_range(0, KEYS[0], 2, 0, 10) is None
    assert client.match(KEYS, SPECS).grains == 0
    assert client.has([(KEYS[0], 2), (key_of(9), 2)]) == [True, False]


def test_what_another_engine_gives_for_a_value_does_not_hide_the_store_s(address: str, tiers: ExitStack) -> None:
    fill(RemoteStore(address, timeout_s=PATIENCE_S))
    odd, asking = (tier(tiers, address, stores_windows=True) for _ in range(2))
    for key in KEYS:
        odd.memory.put(key, RecordKind.STATE, payload_of(key)[:-1])
        odd.neighbours.announce((key, int(RecordKind.STATE)))  # type: ignore[union-attr]
    assert asking.neighbours is not None
    assert asking.neighbours.find([(key, int(RecordKind.STATE)) for key in KEYS])
    match = asking.match(KEYS, SPECS)
    assert all(read(asking, match.lease, grain) for grain in (2, 3, 3))


def test_a_damaged_message_does_not_stop_an_engine_s_memory(address: str, tiers: ExitStack) -> None:
    holder = tier(tiers, address)
    fill(holder)
    assert holder.neighbours is not None
    context: zmq.Context[Any] = zmq.Context()
    with context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.connect(holder.neighbours.address)
        for junk in (b"", b"\xff\xff", msgspec.msgpack.encode({"t": "has", "number": 3, "names": 7})):
            socket.send(junk)
        assert socket.poll(60_000)
        assert msgspec.msgpack.decode(socket.recv())["t"] == "refused"
    context.term()
    assert tier(tiers, address).match(KEYS, SPECS).grains == 4


CHILD = """
import sys
from headrace.kv.host_memory import HostMemory
from headrace.kv.neighbours import Neighbours
from kv_values import key_of, payload_of
memory = HostMemory(1 << 20)
neighbours = Neighbours(memory, sys.argv[1], "tcp://127.0.0.1:*", timeout_s=60.0)
for number in range(4):
    memory.put(key_of(number), 2, payload_of(key_of(number) + b"s"))
    neighbours.announce((key_of(number), 2))
print(neighbours.address, flush=True)
sys.stdin.read()
"""


def test_an_engine_in_another_process_killed_with_9_is_a_miss(address: str, tiers: ExitStack) -> None:
    """Its memory is read while it lives. Then the directory still names it, and a look-up finds that out."""
    mine = tier(tiers, address)
    late = tier(tiers, address, engine_timeout_s=0.2)
    for depth, key in enumerate(KEYS):
        assert mine.put(key, RecordKind.BLOCK, payload_of(key), depth=depth, **FIELDS)
    folders = os.pathsep.join([str(Path(__file__).parent), *(path for path in sys.path if path)])
    command = [sys.executable, "-c", CHILD, address]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True, env={**os.environ, "PYTHONPATH": folders}) as child:
        assert child.stdout is not None
        listening = child.stdout.readline().strip()
        found = mine.match(KEYS, SPECS)
        assert found.grains == 4
        assert read(mine, found.lease, 3)
        child.send_signal(signal.SIGKILL)
        child.wait(60)
    directory = RemoteStore(address, timeout_s=PATIENCE_S)
    tiers.callback(directory.close)
    assert listening in directory.find([(KEYS[3], 2)])[0]
    assert late.match(KEYS, SPECS).grains == 0
    assert late.match(KEYS, SPECS).grains == 0  # without asking again
    assert directory.find([(KEYS[3], 2)]) == [[]]


def test_settings_of_the_host_tier(tmp_path: Path) -> None:
    def config(**cache: Any) -> EngineConfig:
        return resolve({"model": "m", **cache}, None)

    assert host_bytes(config(), str(tmp_path)) == 0
    assert host_bytes(config(), "s3://bucket") == host_bytes(config(kv_windows="memory"), str(tmp_path)) == 256 << 20
    assert host_bytes(config(kv_host_memory=5), str(tmp_path)) == 5
    assert directory_of(config(), "tcp://127.0.0.1:7420") == "tcp://127.0.0.1:7420"
    assert directory_of(config(kv_directory="tcp://127.0.0.1:1"), "s3://b") == "tcp://127.0.0.1:1"
    assert directory_of(config(), "s3://b") is None
    for field, wrong in (
        ("kv_windows", "nowhere"),
        ("kv_host_memory", -1),
        ("kv_directory", "http://x"),
        ("kv_host_listen", "tcp://*:70"),
    ):
        with pytest.raises(ConfigError, match=field):
            config(**{field: wrong})
    with pytest.raises(ConfigError, match="kv_host_memory"):
        check_host(config(kv_windows="memory", kv_host_memory=0), str(tmp_path))
    with pytest.raises(ConfigError, match="kv_host_listen"):
        check_host(config(kv_host_listen="tcp://10.1.2.3:0"), str(tmp_path))
    with pytest.raises(StoreError, match="secret"):
        Neighbours(HostMemory(1), "tcp://127.0.0.1:1", "tcp://10.1.2.3:0")

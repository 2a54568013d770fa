"""A store that fails is told of once, and once more when it works again; never in a flood."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from kv_values import FaultyDisk, found, put

from headrace.kv.backoff import AWAITED_BACKOFF_S
from headrace.kv.client import RemoteStore
from headrace.kv.connector import OpenStore, StoreConnector
from headrace.kv.health import AGAIN_S, Health
from headrace.kv.local import LocalStore
from headrace.kv.objects import ObjectStore

DEADLINE_S = 30.0
Told = Callable[[], list[str]]


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Told:
    """What was told since the last time."""

    def take() -> list[str]:
        lines = [record.getMessage() for record in caplog.records if record.name == "headrace.kv"]
        caplog.clear()
        return lines

    return take


def test_once_each_and_no_flood_from_one_that_works_now_and_then(told: Told) -> None:
    now = [0.0]
    health = Health("a place", lambda: now[0])
    health.worked("writing")
    assert told() == []
    for _ in range(3):
        health.failed("writing", "full")
    health.failed("reading", "gone")
    fails = ["the KV store at a place fails at writing: full. Requests are served without it"]
    assert told() == [*fails, fails[0].replace("writing: full", "reading: gone")]
    health.worked("writing")
    assert told() == ["the KV store at a place works again (writing; 3 calls had failed)"]
    for _ in range(100):
        health.failed("writing", "full")
        health.worked("writing")
    assert told() == []
    now[0] = AGAIN_S
    health.failed("writing", "full\nand all the state of a library")
    assert told() == fails


def test_a_full_disk_and_one_that_cannot_be_read(tmp_path: Path, told: Told) -> None:
    disk = FaultyDisk()
    store = LocalStore(tmp_path, 64 << 20, disk=disk)
    assert put(store, 1)
    disk.full_after = 0
    assert not put(store, 2)
    assert not put(store, 3)
    [line] = told()
    assert str(tmp_path) in line
    assert "Errno 28" in line
    disk.full_after = None
    assert put(store, 2)
    [line] = told()
    assert "works again" in line
    disk.fail = {"read"}
    assert not found(store, 1)
    disk.fail = set()
    assert found(store, 1)
    assert ["reading" in line for line in told()] == [True, True]
    store.close()
    assert not found(store, 1)
    assert told() == []  # that it was closed is no failure


class Bucket:
    """Has nothing, or is gone."""

    gone = True

    def head(self, path: str) -> dict[str, int]:
        raise ConnectionError("nobody there") if self.gone else FileNotFoundError(path)


def test_a_bucket_that_is_gone_and_comes_back(told: Told) -> None:
    now, bucket = [0.0], Bucket()
    store = ObjectStore(bucket, b"s" * 16, where="s3://b", clock=lambda: now[0])
    assert store.has([(bytes(32), 0)] * 40) == [False] * 40
    [line] = told()
    assert "s3://b" in line
    assert "nobody there" in line
    bucket.gone = False
    store.has([(bytes(32), 0)])
    assert told() == []  # it is left alone for a while
    now[0] = AWAITED_BACKOFF_S + 1
    store.has([(bytes(32), 0)])
    [line] = told()
    assert "works again" in line
    store.close()


def test_a_server_that_does_not_answer(tmp_path: Path, told: Told) -> None:
    client = RemoteStore(f"ipc://{tmp_path}/nobody", timeout_s=0.05)
    assert client.has([(bytes(32), 0)]) == [False]
    assert client.has([(bytes(32), 0)]) == [False]
    [line] = told()
    assert "no answer within 0.05 s" in line
    client.close()
    client.has([(bytes(32), 0)])
    assert told() == []


def test_a_server_that_is_not_there_is_told_of_before_anybody_asks(told: Told) -> None:
    store = RemoteStore("tcp://127.0.0.1:1", timeout_s=0.01)
    connector = StoreConnector(lambda: OpenStore(store, bytes(32), elsewhere=True), [], None)  # type: ignore[arg-type]
    lines: list[str] = []
    deadline = time.monotonic() + DEADLINE_S
    while not lines and time.monotonic() < deadline:
        time.sleep(0.005)
        lines = told()
    connector.close()
    [line] = lines
    assert line.startswith("the KV store at tcp://127.0.0.1:1 fails at a request")

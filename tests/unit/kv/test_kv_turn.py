"""Whose turn it is to change an index: who has it and stands still is not waited for without end."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kv_values import found, key_of, put

from headrace.contract.errors import StoreError
from headrace.kv.environments import READERS_EVERY
from headrace.kv.local import LocalStore
from headrace.kv.turn import AGAIN_S, Turn

ROOMY = 16 << 20


@contextmanager
def standing_still(path: Path) -> Iterator[None]:
    """As a process that was stopped in the midst of a change: another open file has the lock."""
    fd = os.open(path, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(fd)


def test_one_at_a_time_and_the_next_when_it_is_over(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    first, second = Turn(tmp_path / "file", 0.01), Turn(tmp_path / "file", 0.01)
    with first.held():
        with pytest.raises(TimeoutError, match="stands still"), second.held():
            pass
        with pytest.raises(TimeoutError), first.held():  # another thread of this process would have it so
            pass
    with second.held():
        pass
    first.close()
    with pytest.raises(ValueError, match="negative"), first.held():
        pass
    second.close()


def test_after_a_wait_in_vain_each_call_looks_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    now, slept = [100.0], list[float]()
    turn = Turn(tmp_path / "file", 5.0, clock=lambda: now[0])

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += 1.0

    with pytest.MonkeyPatch.context() as patch, standing_still(tmp_path / "file"):
        patch.setattr("headrace.kv.turn.time.sleep", sleep)
        for waits in (5, 0, 0):
            slept.clear()
            with pytest.raises(TimeoutError), turn.held():
                pass
            assert len(slept) == waits
        now[0] += AGAIN_S
        slept.clear()
        with pytest.raises(TimeoutError), turn.held():
            pass
        assert len(slept) == 5
    with turn.held():  # whoever looks once and finds it free has it
        pass
    turn.close()


def test_a_store_whose_index_is_held_serves_stores_nothing_and_closes(tmp_path: Path) -> None:
    store, data = LocalStore(tmp_path, ROOMY), tmp_path / "index" / "data.mdb"
    store.index._held.turn._wait_s = 0.01
    assert put(store, 1)
    with standing_still(data):
        assert not put(store, 2)
        assert found(store, 1)
        assert not store.delete(key_of(1), 0)
    assert put(store, 2)
    with standing_still(data):
        store.close()
    assert not put(store, 3)


def test_such_a_store_is_not_opened_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    LocalStore(tmp_path, ROOMY).close()
    monkeypatch.setattr("headrace.kv.environments.Turn", lambda path: Turn(path, 0.01))
    with standing_still(tmp_path / "index" / "data.mdb"), pytest.raises(StoreError, match="stands still"):
        LocalStore(tmp_path, ROOMY)
    store = LocalStore(tmp_path, ROOMY)
    assert put(store, 1)
    store.close()


def test_a_folder_without_locks_has_lmdbs_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(_: int) -> bool:
        raise OSError(37, "no locks available")

    monkeypatch.setattr("headrace.kv.turn.try_lock", no_locks)
    store = LocalStore(tmp_path, ROOMY)
    assert put(store, 1)
    assert found(store, 1)
    store.close()


HOLD = """import sys
from pathlib import Path
from headrace.kv.environments import READERS_EVERY
from headrace.kv.local import LocalStore
txn = LocalStore(Path(sys.argv[1]), 1 << 24).index._env.begin()
print(flush=True)
input()"""


def test_a_reader_that_was_killed_does_not_make_the_index_grow_for_ever(tmp_path: Path) -> None:
    store, data = LocalStore(tmp_path, ROOMY), tmp_path / "index" / "data.mdb"
    command, environment = [sys.executable, "-c", HOLD, str(tmp_path)], {"PYTHONPATH": ":".join(sys.path)}
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline()
        reader.kill()
    for number in range(2 * READERS_EVERY):
        assert put(store, number, 10)
    before = data.stat().st_size
    for number in range(2 * READERS_EVERY, 6 * READERS_EVERY):
        assert put(store, number, 10)
    assert data.stat().st_size - before < 64 * 4096  # else a handful of pages for each change
    store.close()

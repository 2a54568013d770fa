"""What disks and processes do to a store: every one of these ends as a miss, never as a wrong byte."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from kv_values import FaultyDisk, found, key_of, put

from headrace.contract.errors import StoreError
from headrace.kv import reclaim
from headrace.kv.environments import LOCK_BYTES
from headrace.kv.local import LocalStore
from headrace.kv.segment import PAGE
from headrace.kv.weights import weights_digest

ROOMY = 64 << 20
ROOT = Path(__file__).resolve().parents[3]
WRITER = ROOT / "tests" / "support" / "kv_writer.py"


def segments(folder: Path) -> list[Path]:
    return sorted((folder / "segments").iterdir())


def abandon(store: LocalStore) -> None:
    """As a killed process leaves it: nothing sealed, nothing flushed."""
    if store._writer is not None:
        store._writer.abandon()
    store.index.close()


@pytest.mark.parametrize("limit", [0, 1, PAGE - 1, PAGE, PAGE + 1, PAGE + 5000, PAGE + 8191])
def test_a_full_disk_costs_that_value_only(tmp_path: Path, limit: int) -> None:
    disk = FaultyDisk()
    store = LocalStore(tmp_path, ROOMY, disk=disk)
    put(store, 1)
    disk.full_after = limit
    assert not put(store, 2)
    assert found(store, 1)
    assert not found(store, 2)
    disk.full_after = None
    assert put(store, 2)
    assert found(store, 2)
    assert store.counts.failed_puts == 1
    store.close()
    again = LocalStore(tmp_path, ROOMY)
    assert found(again, 1)
    assert found(again, 2)
    again.close()


def test_a_disk_that_is_full_at_any_byte(tmp_path: Path) -> None:
    disk = FaultyDisk()
    store = LocalStore(tmp_path, ROOMY, disk=disk)
    put(store, 1, 300)
    for limit in range(2 * PAGE):
        disk.full_after = limit
        assert not put(store, 2, 300)
        disk.full_after = None
        assert found(store, 1, 300)
        assert not found(store, 2, 300)
    assert put(store, 2, 300)
    store.close()
    assert reclaim.check(LocalStore(tmp_path, ROOMY)) == (2, 0)


def test_a_full_disk_refuses_the_store_before_anything_is_mapped(tmp_path: Path) -> None:
    disk = FaultyDisk()
    disk.full_after = 0
    with pytest.raises(StoreError, match=r"cannot be opened: .*full"):
        LocalStore(tmp_path, ROOMY, disk=disk)
    assert (tmp_path / "index" / "lock.mdb").stat().st_size == 0
    assert not (tmp_path / "index" / "data.mdb").exists()
    store = LocalStore(tmp_path, ROOMY)
    assert put(store, 1)
    store.close()


def test_what_the_index_writes_through_a_map_has_its_place_on_the_disk(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, ROOMY)
    lock = (tmp_path / "index" / "lock.mdb").stat()
    assert lock.st_size == LOCK_BYTES
    assert lock.st_blocks * 512 >= LOCK_BYTES
    disk = FaultyDisk()
    disk.full_after = 0  # another engine, when the disk has become full: the place is there already
    store.close()
    LocalStore(tmp_path, ROOMY, disk=disk).close()


def test_a_digest_that_cannot_be_noted_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(b"weights")
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError("scripted")))
    assert weights_digest([model], tmp_path / "kv" / "weights.json")
    assert not list((tmp_path / "kv").iterdir())


@pytest.mark.parametrize("size", [1, 7, 4096, 4097])
def test_short_reads_and_writes_are_finished(tmp_path: Path, size: int) -> None:
    disk = FaultyDisk()
    store = LocalStore(tmp_path, ROOMY, disk=disk)
    disk.short = size
    assert put(store, 1, 300)
    assert found(store, 1, 300)
    store.close()


@pytest.mark.parametrize("call", ["write", "create", "sync", "rename"])
def test_an_error_of_the_disk_is_a_value_not_stored(tmp_path: Path, call: str) -> None:
    disk = FaultyDisk()
    store = LocalStore(tmp_path, ROOMY, disk=disk, segment_bytes=20_000)
    put(store, 1)
    disk.fail = {call}
    for number in range(2, 6):
        put(store, number)
    disk.fail = set()
    assert put(store, 9)
    held = [number for number in (*range(1, 6), 9) if found(store, number)]
    assert {1, 9} <= set(held)
    store.close()
    again = LocalStore(tmp_path, ROOMY)
    assert [number for number in (*range(1, 6), 9) if found(again, number)] == held
    again.close()


def test_a_torn_write_that_cannot_be_taken_back_gives_the_segment_up(tmp_path: Path) -> None:
    disk = FaultyDisk()
    store = LocalStore(tmp_path, ROOMY, disk=disk)
    put(store, 1)
    disk.full_after, disk.fail = PAGE + 100, {"truncate"}
    assert not put(store, 2)
    disk.full_after, disk.fail = None, set()
    assert put(store, 3)
    assert len(segments(tmp_path)) == 2
    store.close()
    again = LocalStore(tmp_path, ROOMY)
    assert [found(again, number) for number in (1, 2, 3)] == [True, False, True]
    assert all(path.suffix == ".seg" for path in segments(tmp_path))
    again.close()


def test_a_read_error_is_a_miss_and_the_value_comes_back_with_the_disk(tmp_path: Path) -> None:
    disk = FaultyDisk()
    store = LocalStore(tmp_path, ROOMY, disk=disk)
    put(store, 1)
    disk.fail = {"read"}
    assert not found(store, 1)
    disk.fail = set()
    assert found(store, 1)
    assert store.counts.failed_reads == 1
    store.close()


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("offset", [PAGE, PAGE + 20, 2 * PAGE - 1, 2 * PAGE, 2 * PAGE + 4999])
def test_a_flipped_bit_is_found_and_the_value_dropped(tmp_path: Path, offset: int) -> None:
    store = LocalStore(tmp_path, ROOMY)
    put(store, 1)
    put(store, 2)
    [path] = segments(tmp_path)
    flip(path, offset)
    assert not found(store, 1)
    assert found(store, 2)
    assert store.counts.damaged == 1
    assert put(store, 1)
    assert found(store, 1)
    store.close()


def test_a_payload_cut_off_under_a_valid_entry(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, ROOMY)
    put(store, 1)
    put(store, 2)
    os.truncate(segments(tmp_path)[0], 4 * PAGE + 50)
    assert found(store, 1)
    assert not found(store, 2)
    assert store.counts.damaged == 1
    store.close()


def test_an_entry_that_points_at_another_value_is_no_hit(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, ROOMY)
    put(store, 1)
    put(store, 2)
    entry = store.index.get(key_of(1) + b"\0")
    assert entry is not None
    with store.index.change() as change:
        change.put(key_of(2) + b"\0", entry)
    assert not found(store, 2)
    assert found(store, 1)
    store.close()


def test_a_segment_that_vanished(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, ROOMY)
    put(store, 1)
    store.seal()
    put(store, 2)
    segments(tmp_path)[0].unlink()
    assert not found(store, 1)
    store.close()
    again = LocalStore(tmp_path, ROOMY)
    assert found(again, 2)
    assert again.stat()["values"] == 1
    again.close()


def test_what_a_dead_writer_completed_is_found_and_the_rest_given_back(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, ROOMY)
    put(store, 1)
    put(store, 2)
    put(store, 3)
    [path] = segments(tmp_path)
    with store.index.change() as change:  # died before it could publish the second
        change.remove(key_of(2) + b"\0")
    abandon(store)
    os.truncate(path, path.stat().st_size - 5000)  # and while it wrote the third
    again = LocalStore(tmp_path, ROOMY)
    assert [found(again, number) for number in (1, 2, 3)] == [True, True, False]
    assert again.counts.recovered == 1
    assert segments(tmp_path)[0].suffix == ".seg"
    again.close()


@pytest.mark.parametrize("damage", ["gone", "garbage"])
def test_a_lost_index_is_built_again_from_the_segments(tmp_path: Path, damage: str) -> None:
    store = LocalStore(tmp_path, ROOMY, segment_bytes=30_000, name_space=b"n" * 16)
    for number in range(10):
        put(store, number, tenant=b"t" * 16, depth=number)
    store.close()
    index = tmp_path / "index" / "data.mdb"
    index.unlink() if damage == "gone" else index.write_bytes(b"garbage" * 4096)
    again = LocalStore(tmp_path, ROOMY, name_space=b"n" * 16)
    assert all(found(again, number) for number in range(10))
    entry = again.index.get(key_of(7) + b"\0")
    assert entry is not None
    assert (entry.depth, entry.tenant) == (7, b"t" * 16)
    assert put(again, 99)
    again.close()


def test_a_purged_tenant_does_not_rise_again_with_a_lost_index(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, ROOMY)
    for number in range(6):
        put(store, number, tenant=(b"a" if number % 2 else b"b") * 16)
    reclaim.purge(store, b"a" * 16)
    store.close()
    (tmp_path / "index" / "data.mdb").unlink()
    again = LocalStore(tmp_path, ROOMY)
    assert [number for number in range(6) if found(again, number)] == [0, 2, 4]
    again.close()


def writer(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(WRITER), str(folder), *arguments]
    environment = {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'tests' / 'support'}", "PATH": os.environ["PATH"]}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def test_two_processes_write_the_same_and_different_keys(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, ROOMY, segment_bytes=100_000)
    with writer(tmp_path, "0", "60") as other:
        for number in range(30, 90):
            assert put(store, number)
        assert other.wait(60) == 0
    assert all(found(store, number) for number in range(90))
    assert store.stat()["values"] == 90
    store.close()


def test_a_living_writer_s_segment_is_left_alone(tmp_path: Path) -> None:
    with writer(tmp_path, "0", "5", "hold") as other:
        assert other.stdout is not None
        while other.stdout.readline().strip() != "holding":
            assert other.poll() is None
        store = LocalStore(tmp_path, ROOMY)
        assert [path.suffix for path in segments(tmp_path)] == [".part"]
        assert all(found(store, number) for number in range(5))
        other.kill()
        other.wait(60)
        store.close()
    again = LocalStore(tmp_path, ROOMY)  # its lock went with it
    assert [path.suffix for path in segments(tmp_path)] == [".seg"]
    assert all(found(again, number) for number in range(5))
    again.close()


def test_a_few_killed_writers_lose_nothing_they_had_published(tmp_path: Path) -> None:
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        import kv_kill_loops
    finally:
        sys.path.pop(0)
    report = kv_kill_loops.run(tmp_path, loops=3, seed=1)
    assert report["lost"] == 0
    assert report["wrong"] == 0
    assert report["published"] > 0


def test_payloads_are_views_of_nothing_shared(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, ROOMY)
    put(store, 1)
    first = store.get(key_of(1), 0)
    assert first is not None
    first[:] = 0  # whoever gets a value owns it
    assert found(store, 1)
    assert isinstance(first, np.ndarray)
    store.close()

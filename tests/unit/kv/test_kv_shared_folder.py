"""Several engines on one folder: what one collects, moves, seals or purges while another looks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from kv_values import found, key_of, put

from headrace.kv import collection
from headrace.kv.disk import Disk
from headrace.kv.index import Entry, entry_key
from headrace.kv.local import LocalStore
from headrace.kv.opening import Errand, open_store_at
from headrace.kv.writer import sealed_path

ROOMY = 64 << 20


def entry_of(store: LocalStore, number: int) -> Entry:
    entry = store.index.get(entry_key(key_of(number), 0))
    assert entry is not None
    return entry


def test_segments_that_go_while_a_store_is_opened_are_passed_over(tmp_path: Path) -> None:
    """A link to nothing is listed, and gone when it is looked at."""
    store = LocalStore(tmp_path, ROOMY)
    put(store, 1)
    store.close()
    for name in ("00000098.part", "00000099.seg"):
        (tmp_path / "segments" / name).symlink_to(tmp_path / "collected")
    again = open_store_at(Errand(str(tmp_path), bytes(16)))
    assert isinstance(again, LocalStore)
    assert found(again, 1)
    again.close()


def test_an_entry_that_has_moved_is_not_taken_out_by_its_old_place(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, ROOMY)
    put(store, 1)
    name, here = entry_key(key_of(1), 0), entry_of(store, 1)
    moved = replace(here, segment=here.segment + 1)
    with store.index.change() as change:
        change.put(name, moved)
        assert not change.remove_at(name, here)
        assert change.remove_at(name, moved)
    store.close()


def test_a_segment_that_another_engine_collects_first_is_no_error(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, ROOMY)
    for number in range(4):
        put(store, number)
    segment = entry_of(store, 0).segment
    store.seal()
    for number in range(3):
        store.delete(key_of(number), 0)
    sealed = sealed_path(store.segments, segment)
    aside, opened = tmp_path / "aside", store.disk.open

    def gone(path: Path, *, write: bool = False) -> int:
        if sealed.exists():
            sealed.rename(aside)
        return opened(path, write=write)

    store.disk.open = gone  # type: ignore[method-assign]
    assert collection.collect(store)
    assert not collection.collect(store)
    assert segment not in store.index.all_segments()
    assert not found(store, 3)
    assert put(store, 3)
    store.close()


class SlowDisk(Disk):
    """Something happens before a lock is asked for, once."""

    def __init__(self, meanwhile: Callable[[Path], object]) -> None:
        self._meanwhile: Callable[[Path], object] | None = meanwhile

    def lock(self, fd: int, path: Path) -> bool:
        meanwhile, self._meanwhile = self._meanwhile, None
        if meanwhile is not None:
            meanwhile(path)
        return super().lock(fd, path)


def test_a_new_segment_that_is_cleaned_up_before_its_lock_is_begun_anew(tmp_path: Path) -> None:
    """What was written to a file without a name would be lost."""
    store = LocalStore(tmp_path, ROOMY, disk=SlowDisk(lambda _: LocalStore(tmp_path, ROOMY).close()))
    assert put(store, 1)
    assert found(store, 1)
    store.close()
    again = LocalStore(tmp_path, ROOMY)
    assert found(again, 1)
    again.close()


def test_a_segment_that_is_sealed_before_an_adopter_s_lock_is_left_alone(tmp_path: Path) -> None:
    writer = LocalStore(tmp_path, ROOMY)
    put(writer, 1)
    size: list[int] = []

    def seal(part: Path) -> None:
        writer.seal()
        size.append(part.with_suffix(".seg").stat().st_size)

    other = LocalStore(tmp_path, ROOMY, disk=SlowDisk(seal))
    assert found(other, 1)
    assert [path.stat().st_size for path in other.segments.iterdir()] == size
    other.close()
    writer.close()


def test_an_entry_whose_file_is_gone_is_dropped_so_that_the_value_can_be_stored_again(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, ROOMY)
    put(store, 1)
    store.seal()
    sealed_path(store.segments, entry_of(store, 1).segment).unlink()
    assert not found(store, 1)
    assert store.has([(key_of(1), 0)]) == [False]
    assert put(store, 1)
    assert found(store, 1)
    store.close()

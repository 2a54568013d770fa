"""Several engines on one folder: what one collects, moves, seals or purges while another looks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from kv_values import found, key_of, put

from headrace.kv import collection
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

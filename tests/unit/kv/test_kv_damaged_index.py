"""An index whose file is damaged: calls miss, nothing raises, and the next opening builds it anew."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from kv_values import found, key_of, put

from headrace.kv.local import LocalStore
from headrace.kv.records import RecordKind, RecordSpec

ROOMY = 64 << 20
BLOCK = RecordSpec(RecordKind.BLOCK, (0,), 5000)
NAME = key_of(1) + b"\0"
LMDB_PAGE, MAIN_ROOT_AT = 4096, 128  # of a meta page, in LMDB's format 1


def spoil(database: str, key: bytes, value: bytes) -> Callable[[LocalStore], None]:
    def work(store: LocalStore) -> None:
        with store.index.change() as change:
            change._txn.put(key, value, db=getattr(store.index, database))

    return work


def far_away(store: LocalStore) -> None:
    entry = store.index.get(NAME)
    assert entry is not None
    spoil("entries", NAME, replace(entry, offset=2**64 - 1).pack())(store)


DAMAGES = {
    "a short entry": spoil("entries", NAME, b"short"),
    "an entry that lies where no file reaches": far_away,
    "a short row of a segment": spoil("segments", struct.pack(">I", 1), b"short"),
    "a tenant's total": spoil("tenants", bytes(16), b"?"),
    "the next number": spoil("meta", b"next", b"none"),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_nonsense_in_the_index_is_a_miss_and_gone_at_the_next_opening(
    tmp_path: Path, damage: Callable[[LocalStore], None]
) -> None:
    store = LocalStore(tmp_path, ROOMY)
    for number in range(5):
        assert put(store, number)
    damage(store)
    keys = [key_of(number) for number in range(6)]
    assert len(store.has([(key, 0) for key in keys])) == 6
    assert len(store.sizes([(key, 0) for key in keys])) == 6
    assert 0 <= store.match(keys, [BLOCK]).grains <= 5
    assert store.turn_of(keys[1], 0) >= 0
    found(store, 1)
    put(store, 9)
    store.delete(key_of(8), 0)
    store.close()
    again = LocalStore(tmp_path, ROOMY)
    assert all(found(again, number) for number in range(5))
    assert put(again, 10)
    assert found(again, 10)
    again.close()


def test_an_index_that_lost_a_page_is_built_again(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, ROOMY)
    put(store, 1)
    store.close()
    path = tmp_path / "index" / "data.mdb"
    data = bytearray(path.read_bytes())
    for meta in (0, LMDB_PAGE):
        struct.pack_into("<Q", data, meta + MAIN_ROOT_AT, 10**6)
    path.write_bytes(data)
    again = LocalStore(tmp_path, ROOMY)
    assert found(again, 1)
    again.close()


def test_a_file_whose_number_no_segment_has_is_left_alone(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, ROOMY)
    put(store, 1)
    store.close()
    (tmp_path / "segments" / "99999999999.seg").write_bytes(b"whose?")
    again = LocalStore(tmp_path, ROOMY)
    assert found(again, 1)
    again.close()

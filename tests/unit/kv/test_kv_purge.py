"""A purge leaves no byte of a tenant: beside a server that goes on, and behind damage."""

from __future__ import annotations

from pathlib import Path

import pytest
from kv_values import found, key_of, payload_of, put

from headrace.contract.errors import StoreError
from headrace.kv import collection, reclaim
from headrace.kv.index import entry_key
from headrace.kv.local import LocalStore
from headrace.kv.segment import PAGE, Bytes, ValueHead
from headrace.kv.writer import SegmentWriter, part_path, sealed_path

ROOMY = 64 << 20
OURS, OTHERS = b"a" * 16, b"b" * 16


def on_disk(folder: Path, number: int) -> bool:
    files = b"".join(path.read_bytes() for path in (folder / "segments").iterdir())
    return payload_of(key_of(number)).tobytes()[:64] in files


def place_of(store: LocalStore, number: int) -> tuple[int, int]:
    entry = store.index.get(entry_key(key_of(number), 0))
    assert entry is not None
    return entry.segment, entry.offset


def damage(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def emptyish(folder: Path) -> int:
    """A sealed segment in which one value of ours lives, number 4; its own number."""
    writer = LocalStore(folder, ROOMY)
    for number in range(1, 5):
        put(writer, number, tenant=OURS)
    segment, _ = place_of(writer, 4)
    for number in range(1, 4):
        writer.delete(key_of(number), 0)
    writer.close()
    return segment


def test_what_a_server_moves_to_where_a_purge_has_been_is_found_there(tmp_path: Path) -> None:
    server = LocalStore(tmp_path, ROOMY)
    put(server, 0, tenant=OTHERS)  # its open segment is the first one that the purge looks at
    full = sealed_path(server.segments, emptyish(tmp_path))
    purging = LocalStore(tmp_path, ROOMY)
    opened = purging.disk.open

    def collected(path: Path, *, write: bool = False) -> int:
        if path == full and full.exists():
            assert collection.collect(server)
        return opened(path, write=write)

    purging.disk.open = collected  # type: ignore[method-assign]
    assert reclaim.purge(purging, OURS) == 1
    assert not full.exists()
    assert found(server, 0)
    assert not any(on_disk(tmp_path, number) for number in range(1, 5))
    purging.close()
    server.close()
    (tmp_path / "index" / "data.mdb").unlink()
    again = LocalStore(tmp_path, ROOMY)
    assert [number for number in range(5) if found(again, number)] == [0]
    again.close()


def test_what_is_purged_between_a_server_s_read_and_its_copy_is_not_written_again(tmp_path: Path) -> None:
    emptyish(tmp_path)
    server, purging = LocalStore(tmp_path, ROOMY), LocalStore(tmp_path, ROOMY)
    append = server.append

    def late(head: ValueHead, payload: Bytes) -> tuple[SegmentWriter, int]:
        assert reclaim.purge(purging, OURS) == 1
        return append(head, payload)

    server.append = late  # type: ignore[method-assign]
    collection.collect(server)
    assert not on_disk(tmp_path, 4)
    assert not found(server, 4)
    server.close()
    purging.close()


def torn_before_ours(store: LocalStore) -> int:
    """Values 2 and 3, which is forgotten already, are ours, among others' in one segment; 1 is the one to damage."""
    for number in range(10):
        put(store, number, tenant=OURS if number in (2, 3) else OTHERS)
    store.delete(key_of(3), 0)
    return place_of(store, 1)[0]


def test_damage_hides_nothing_from_a_purge(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, ROOMY)
    segment = torn_before_ours(store)
    offset = place_of(store, 1)[1]
    store.seal()
    damage(sealed_path(store.segments, segment), offset + 20)
    assert reclaim.purge(store, OURS) == 1
    assert not any(on_disk(tmp_path, number) for number in (2, 3))
    assert not sealed_path(store.segments, segment).exists()
    assert [number for number in range(10) if found(store, number)] == [0, *range(4, 10)]
    store.close()


def test_damage_in_a_file_that_is_written_to_is_told(tmp_path: Path) -> None:
    server = LocalStore(tmp_path, ROOMY)
    segment = torn_before_ours(server)
    damage(part_path(server.segments, segment), place_of(server, 1)[1] + 20)
    purging = LocalStore(tmp_path, ROOMY)
    with pytest.raises(StoreError, match="is damaged, and an engine still writes to it"):
        reclaim.purge(purging, OURS)
    assert not on_disk(tmp_path, 2)  # by its entry
    assert not found(server, 2)
    server.seal()
    reclaim.purge(purging, OURS)
    assert not on_disk(tmp_path, 3)
    assert [number for number in range(10) if found(purging, number)] == [0, *range(4, 10)]
    purging.close()
    server.close()


def test_a_file_that_is_whole_is_not_taken_for_a_torn_one(tmp_path: Path) -> None:
    server, purging = LocalStore(tmp_path, ROOMY), LocalStore(tmp_path, ROOMY)
    for number in range(4):
        put(server, number, tenant=OTHERS if number < 2 else OURS)
    size = part_path(server.segments, place_of(server, 0)[0]).stat().st_size
    assert reclaim.purge(purging, OURS) == 2
    assert part_path(server.segments, place_of(server, 0)[0]).stat().st_size == size >= 5 * PAGE
    assert put(server, 9, tenant=OURS)
    assert [number for number in (0, 1, 2, 3, 9) if found(server, number)] == [0, 1, 9]
    purging.close()
    server.close()

"""The C++ reader of the index gives LMDB's answers, whoever writes meanwhile and whatever the file holds."""

from __future__ import annotations

import hashlib
import random
import subprocess
import sys
from pathlib import Path

import pytest

from headrace._core import StoreIndex
from headrace.kv.ages import AGENT, CHAT, DAY_S, TTL_S
from headrace.kv.index import ANY_SPACE, LIFETIMES, Entry, EntryKey, Index, entry_key

SPACE, OTHER = b"s" * 16, b"o" * 16
NOW = 1e9


def name_of(number: int, kind: int = 0) -> EntryKey:
    return entry_key(hashlib.sha256(b"%d" % number).digest(), kind)


def entry_of(space: bytes = SPACE, ttl_class: int = CHAT, used: float = NOW) -> Entry:
    return Entry(1, 4096, 1000, 0, ttl_class, 0, 1, space, bytes(16), used, used)


def answers(index: Index, names: list[EntryKey], space: bytes) -> tuple[list[bool], int]:
    """The reader's, which must be LMDB's."""
    assert index._reader is not None
    held = index._reader.has(b"".join(names), space, NOW, LIFETIMES)
    leading = index._reader.leading(b"".join(names), space, NOW, LIFETIMES)
    assert held == index._served(names, space, NOW)
    assert leading == [*held, False].index(False)
    return held, leading


@pytest.mark.parametrize("count", [0, 1, 40, 5000])  # no page, a leaf, a branch, branches of branches
def test_reader_and_lmdb_agree(tmp_path: Path, count: int) -> None:
    chance, index = random.Random(count), Index(tmp_path)
    assert answers(index, [name_of(0)], SPACE) == ([False], 0)
    for share in (range(0, count, 2), range(1, count, 2)):
        with index.change() as change:
            for number in share:
                used = NOW - chance.choice([0, 4, 8]) * DAY_S
                entry = entry_of(chance.choice([SPACE, OTHER]), chance.choice([CHAT, AGENT, 9]), used)
                change.put(name_of(number, chance.randrange(2)), entry)
            for number in range(0, count, 7):
                change.remove(name_of(number))
        names = [name_of(chance.randrange(count + 20), chance.randrange(2)) for _ in range(1000)]
        for space in (SPACE, OTHER, ANY_SPACE):
            answers(index, names, space)
    index.close()


def test_classes_and_edges_of_their_ages(tmp_path: Path) -> None:
    index = Index(tmp_path)
    for number, (ttl_class, late) in enumerate((c, late) for c in TTL_S for late in (-1e-6, 0.0, 1e-6, 1.0)):
        with index.change() as change:
            change.put(name_of(number), entry_of(ttl_class=ttl_class, used=NOW - TTL_S[ttl_class] - late))
    assert answers(index, [name_of(number) for number in range(8)], SPACE)[0] == [True, True, False, False] * 2
    index.close()


WRITER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_kv_index import Index, entry_of, name_of
index = Index(Path(sys.argv[1]))
for number in range(1500):
    with index.change() as change:
        change.put(name_of(10_000 + number), entry_of())
        change.remove(name_of(10_000 + number - 300))
        change.mark_used(name_of(number % 500), number)
"""


def test_answers_are_of_one_moment_while_another_process_writes(tmp_path: Path) -> None:
    index = Index(tmp_path)
    with index.change() as change:
        for number in range(500):
            change.put(name_of(number), entry_of())
    names = b"".join(name_of(number) for number in range(1000))  # the second half is never there
    expected, answered = [True] * 500 + [False] * 500, 0
    command = [sys.executable, "-c", WRITER, str(tmp_path), str(Path(__file__).parent)]
    with subprocess.Popen(command) as writer:
        while writer.poll() is None:
            held = index._reader.has(names, SPACE, NOW, LIFETIMES)  # type: ignore[union-attr]
            assert held in (None, expected)
            assert index.served([name_of(3), name_of(999)], SPACE, NOW) == [True, False]
            answered += held is not None
    assert writer.returncode == 0
    assert answers(index, [name_of(11_499), name_of(11_100), name_of(3)], SPACE) == ([True, False, True], 1)
    assert answered  # or it would have tested LMDB alone
    index.close()


@pytest.mark.parametrize("seed", range(8))
def test_a_damaged_index_is_no_crash(tmp_path: Path, seed: int) -> None:
    (tmp_path / "good").mkdir()
    index, chance = Index(tmp_path / "good"), random.Random(seed)
    with index.change() as change:
        for number in range(600):
            change.put(name_of(number), entry_of())
    index.close()
    whole = (tmp_path / "good" / "data.mdb").read_bytes()
    names = b"".join(name_of(number) for number in range(900))
    for turn in range(20):
        data = bytearray(whole[: chance.choice([len(whole), 4096 * chance.randrange(1, 40) + 13])])
        for _ in range(chance.choice([1, 20, 4000])):
            page = chance.randrange(len(data) // 4096 + 1) * 4096
            at = page + chance.choice([chance.randrange(200), chance.randrange(4096)])  # heads and tables more often
            if at < len(data):
                data[at] = chance.randrange(256)
        path = tmp_path / f"{turn}.mdb"
        path.write_bytes(data)
        try:
            found = StoreIndex(str(path)).has(names, SPACE, NOW, LIFETIMES)
        except (ValueError, RuntimeError):
            continue
        assert found is None or len(found) == 900


def test_what_it_refuses_and_what_lmdb_then_answers(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"nothing\.mdb"):
        StoreIndex(str(tmp_path / "nothing.mdb"))
    (tmp_path / "other.mdb").write_bytes(bytes(8192))
    with pytest.raises(ValueError, match="format 1"):
        StoreIndex(str(tmp_path / "other.mdb"))
    (tmp_path / "index").mkdir()
    index = Index(tmp_path / "index")
    assert index._reader is not None
    with pytest.raises(ValueError, match="33 bytes"):
        index._reader.has(b"short", SPACE, NOW, LIFETIMES)
    with pytest.raises(ValueError, match="16 bytes"):
        index._reader.leading(name_of(1), b"short", NOW, LIFETIMES)
    with index.change() as change:
        change.put(name_of(1), entry_of())
    index._reader = None
    assert index.served([name_of(1), name_of(2)], SPACE, NOW) == [True, False]
    assert index.leading([name_of(1), name_of(2), name_of(1)], SPACE, NOW) == 1
    assert index.leading([name_of(1)], SPACE, NOW) == 1
    index.close()

"""An index whose pages are damaged is found out before LMDB maps it: LMDB would end the process, at every start."""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest
from kv_values import found, key_of, put

from headrace.kv.local import LocalStore
from headrace.kv.pages import check_pages

PAGE = 4096
VALUES = 120  # more than one leaf holds
OPEN = "import sys; from pathlib import Path; from kv_values import found; from headrace.kv.local import LocalStore; \
store = LocalStore(Path(sys.argv[1]), 1 << 24); print(sum(found(store, n) for n in range(int(sys.argv[2]))))"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with deleted values, so that its index has free pages too."""
    folder = tmp_path_factory.mktemp("whole") / "kv"
    store = LocalStore(folder, 1 << 24)
    for n in range(VALUES + 40):
        put(store, n)
    for n in range(VALUES, VALUES + 40):
        store.delete(key_of(n), 0)
    store.close()
    return folder


def pages_in_use(data: bytes) -> list[int]:
    """Those whose loss is told: found by losing each."""
    return [n for n in range(2, len(data) // PAGE) if struct.unpack_from("<Q", data, n * PAGE)[0] == n]


def refused(path: Path) -> bool:
    try:
        check_pages(path)
    except lmdb.CorruptedError:
        return True
    return False


def test_what_lmdb_wrote_is_whole(whole: Path, tmp_path: Path) -> None:
    check_pages(whole / "index" / "data.mdb")
    check_pages(tmp_path / "none")
    (tmp_path / "empty").touch()
    check_pages(tmp_path / "empty")


def test_long_lists_and_values_on_pages_of_their_own_are_walked(tmp_path: Path) -> None:
    environment = lmdb.open(str(tmp_path), map_size=1 << 28, sync=False)
    with environment.begin(write=True) as txn:
        for n in range(3000):
            txn.put(b"%08d" % n, bytes(2000 if n % 2 else 9000))
    with environment.begin(write=True) as txn:  # the list of what is free is then longer than a page
        for n in range(2900):
            txn.delete(b"%08d" % n)
    environment.close()
    check_pages(tmp_path / "data.mdb")
    data = (tmp_path / "data.mdb").read_bytes()
    (tmp_path / "data.mdb").write_bytes(data[: len(data) // 2])
    assert refused(tmp_path / "data.mdb")


def test_every_page_that_is_lost_or_another_one_is_told(whole: Path, tmp_path: Path) -> None:
    data = (whole / "index" / "data.mdb").read_bytes()
    path, told = tmp_path / "data.mdb", 0
    for n in pages_in_use(data):
        for other in (bytes(PAGE), data[2 * PAGE : 3 * PAGE] if n != 2 else data[3 * PAGE : 4 * PAGE]):
            path.write_bytes(data[: n * PAGE] + other + data[(n + 1) * PAGE :])
            told += refused(path)
    assert told >= 2 * 6  # the roots of six databases at least are in use; what is free may be lost
    path.write_bytes(data[: 3 * PAGE])
    assert refused(path)


def test_a_root_that_was_never_written_is_told(whole: Path, tmp_path: Path) -> None:
    data = bytearray((whole / "index" / "data.mdb").read_bytes())
    newest = max(range(2), key=lambda n: struct.unpack_from("<Q", data, n * PAGE + 16 + 24 + 96 + 8)[0])
    struct.pack_into("<Q", data, newest * PAGE + 16 + 24 + 48 + 40, len(data) // PAGE + 7)
    (tmp_path / "data.mdb").write_bytes(data)
    assert refused(tmp_path / "data.mdb")


def cut(data: bytes) -> bytes:
    """As far as the first two pages and one: the roots are behind."""
    return data[: 3 * PAGE]


def zeroed(data: bytes) -> bytes:
    """Every leaf that names values: each was given a place and never written."""
    leaves = [n for n in range(2, len(data) // PAGE) if names_values(data[n * PAGE : (n + 1) * PAGE])]
    assert len(leaves) > 3
    pages = [bytes(PAGE) if n in leaves else data[n * PAGE : (n + 1) * PAGE] for n in range(len(data) // PAGE)]
    return b"".join(pages)


def names_values(page: bytes) -> bool:
    flags, at = struct.unpack_from("<10xH4xH", page)
    return bool(flags & 2) and struct.unpack_from("<6xH", page, at)[0] == 33


@pytest.mark.parametrize("damage", [cut, zeroed], ids=lambda f: f.__name__)
def test_a_store_with_such_an_index_opens_and_has_its_values(
    whole: Path, tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    folder = tmp_path / "kv"
    shutil.copytree(whole, folder)
    index = folder / "index" / "data.mdb"
    index.write_bytes(damage(index.read_bytes()))
    command = [sys.executable, "-c", OPEN, str(folder), str(VALUES)]  # it would take this process along
    done = subprocess.run(command, env={"PYTHONPATH": ":".join(sys.path)}, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, str(VALUES)), done.stderr


def test_an_index_that_another_process_has_open_is_not_walked(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "kv"
    shutil.copytree(whole, folder)
    hold = OPEN + "; print(flush=True); input()"
    command = [sys.executable, "-c", hold, str(folder), "1"]
    environment = {"PYTHONPATH": ":".join(sys.path)}
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("headrace.kv.environments.check_pages", lambda _: pytest.fail("it may change meanwhile"))
            store = LocalStore(folder, 1 << 24)
        assert found(store, 0)
        store.close()
        other.communicate("\n", timeout=60)

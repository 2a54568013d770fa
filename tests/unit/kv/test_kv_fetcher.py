"""The process that fetches: its values are the store's; stopped, killed or orphaned it costs misses and no more."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from kv_values import key_of, payload_of, put

from headrace.contract.errors import StoreError
from headrace.kv.client import RemoteStore
from headrace.kv.fetch_process import MOST_ASKED, FetchProcess
from headrace.kv.fetcher import LONGEST_PAUSE_S, Fetcher, Pauses, open_fetcher, ring_for
from headrace.kv.local import LocalStore
from headrace.kv.opening import Errand, open_store_at
from headrace.kv.reading import DirectReader, Wanted
from headrace.kv.records import RecordKind, RecordSpec
from headrace.kv.ring import RingShape
from headrace.kv.server import StoreServer
from headrace.kv.shared import FOLDER, PREFIX
from headrace.kv.shares import SHARES

SPACE = b"s" * 16
ROOMY = 64 << 20
DEADLINE_S = 60.0
NAMES = [Wanted(key_of(i), 0, 5000) for i in range(12)]
ENGINE = """
import sys, time
from headrace.kv.fetcher import open_fetcher
from headrace.kv.opening import Errand
fetcher = open_fetcher(Errand(sys.argv[1], b"s" * 16, 1 << 26), 5000)
print(fetcher.life.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def errand(tmp_path: Path) -> Errand:
    """A store that holds values 0 to 9."""
    store = LocalStore(tmp_path, ROOMY, name_space=SPACE)
    assert all(put(store, i) for i in range(10))
    store.close()
    return Errand(str(tmp_path), SPACE, ROOMY)


def fetcher_of(errand: Errand, silent_s: float) -> Fetcher:
    """Over four slots; its processes are started again at once."""
    shape = RingShape(4, 5000)

    def start() -> FetchProcess:
        life = FetchProcess(errand, shape, silent_s)
        life.wait_opened(DEADLINE_S)
        return life

    return Fetcher(start, 2, Pauses(0.01))


@pytest.fixture
def fetcher(errand: Errand) -> Iterator[Fetcher]:
    """Its processes are never found silent: the test's machine may be slow."""
    with closing(fetcher_of(errand, 10 * DEADLINE_S)) as fetcher:
        yield fetcher


def soon() -> float:
    return time.monotonic() + DEADLINE_S


def read(fetcher: Fetcher, names: list[Wanted], deadline: float | None = None) -> list[bool]:
    """Which came; a wrong byte fails."""
    values = list(fetcher.read(0, names, soon() if deadline is None else deadline))
    for name, value in zip(names, values, strict=True):
        assert value is None or np.array_equal(value, payload_of(name.key, name.length)), "a wrong byte"
    return [value is not None for value in values]


def until(happens: Callable[[], bool]) -> None:
    end = soon()
    while not happens():
        assert time.monotonic() < end, "it does not come"
        time.sleep(0.01)


def ended(process: int) -> bool:
    """Whether it is gone, or waits for somebody to notice."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def shared_names(process: int) -> list[str]:
    return [path.name for path in FOLDER.glob(f"{PREFIX}{process}-*")]


def test_values_are_those_of_the_store_itself(errand: Errand, fetcher: Fetcher) -> None:
    names = [*NAMES, Wanted(key_of(3), 1, 5000), Wanted(key_of(3), 0, 4999), NAMES[0]]
    store = LocalStore(Path(errand.place), ROOMY, name_space=SPACE)
    direct = [value is not None for value in DirectReader(store).read(0, names, soon())]
    store.close()
    assert read(fetcher, names) == direct == [True] * 10 + [False] * 4 + [True]
    assert shared_names(os.getpid()) == []  # both have mapped it


def test_a_server_s_values_under_the_engine_s_lease(errand: Errand) -> None:
    server = StoreServer(LocalStore(Path(errand.place), ROOMY, name_space=SPACE), "tcp://127.0.0.1:*")
    thread = threading.Thread(target=server.run)
    thread.start()
    asking = RemoteStore(server.address, timeout_s=DEADLINE_S)
    with closing(asking), closing(open_fetcher(Errand(server.address, SPACE), 5000)) as fetcher:
        match = asking.match([key_of(i) for i in range(10)], [RecordSpec(RecordKind.BLOCK, (0,), 5000)])
        assert match.grains == 10
        assert all(value is not None for value in fetcher.read(match.lease, NAMES[:10], soon()))
        asking.release(match.lease)
        assert list(fetcher.read(match.lease, NAMES[:2], soon())) == [None, None]
    server.stop()
    thread.join(DEADLINE_S)


def test_stripes(tmp_path: Path) -> None:
    pytest.importorskip("pyeclib")
    (tmp_path / "places.txt").write_text("\n".join(str(tmp_path / str(i)) for i in range(SHARES)))
    errand = Errand(f"striped:{tmp_path / 'places.txt'}", SPACE, 12 * ROOMY)
    store = open_store_at(errand)
    fields = {"tenant": bytes(16), "depth": 0, "turn": 1, "ttl_class": 0}
    assert all(store.put(name.key, 0, payload_of(name.key), **fields) for name in NAMES[:3])  # type: ignore[arg-type]
    store.close()
    with closing(open_fetcher(errand, 5000)) as fetcher:
        assert read(fetcher, NAMES[:4]) == [True] * 3 + [False]


def test_what_is_not_wanted_any_more_gives_its_slots_back(fetcher: Fetcher) -> None:
    for _ in range(20):
        with closing(fetcher.read(0, NAMES[:10], soon())) as values:
            assert next(values) is not None
    assert read(fetcher, NAMES[:10], time.monotonic() - 1) == [False] * 10  # late already
    assert all(read(fetcher, NAMES[:10]))
    assert not fetcher.life._held


def test_fetches_side_by_side(fetcher: Fetcher) -> None:
    with ThreadPoolExecutor(4) as threads:
        assert all(all(came) for came in threads.map(lambda _: read(fetcher, NAMES[:10]), range(12)))


def test_killed_in_mid_fetch(fetcher: Fetcher) -> None:
    life = fetcher.life
    os.kill(life.pid, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as thread:
        reading = thread.submit(read, fetcher, NAMES[:10])
        until(lambda: len(life._asked) > 0)
        os.kill(life.pid, signal.SIGKILL)
        assert reading.result(DEADLINE_S) == [False] * 10
    until(lambda: fetcher.life is not life)
    assert all(read(fetcher, NAMES[:10]))
    assert shared_names(os.getpid()) == []


def test_one_that_says_nothing_is_ended_and_replaced(errand: Errand) -> None:
    with closing(fetcher_of(errand, 0.0)) as fetcher:  # whoever keeps somebody waiting is silent
        life = fetcher.life
        os.kill(life.pid, signal.SIGSTOP)
        assert read(fetcher, NAMES[:10], time.monotonic() + 0.1) == [False] * 10
        until(lambda: fetcher.life is not life)
        assert ended(life.pid)
        assert all(read(fetcher, NAMES[:10]))


def test_a_stopped_one_is_asked_so_much_and_no_more(fetcher: Fetcher) -> None:
    os.kill(fetcher.life.pid, signal.SIGSTOP)
    for _ in range(500):  # far more than its socket holds
        assert read(fetcher, NAMES[:4], time.monotonic() - 1) == [False] * 4
    assert len(fetcher.life._asked) == MOST_ASKED
    os.kill(fetcher.life.pid, signal.SIGCONT)
    until(lambda: not fetcher.life._asked)
    assert all(read(fetcher, NAMES[:10]))


def test_closed_it_misses_and_nothing_is_left(fetcher: Fetcher) -> None:
    life = fetcher.life
    fetcher.close()
    assert ended(life.pid)
    assert read(fetcher, NAMES[:10]) == [False] * 10


def test_a_store_that_cannot_be_opened_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=f"{tmp_path}/file: the process that fetches: "):
        open_fetcher(Errand(str(tmp_path / "file"), SPACE, ROOMY), 5000)
    assert shared_names(os.getpid()) == []


def test_an_engine_killed_takes_its_process_along(errand: Errand) -> None:
    command = [sys.executable, "-c", ENGINE, errand.place]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as engine:
        assert engine.stdout is not None
        child = int(engine.stdout.readline())
        assert not ended(child)
        engine.kill()
    until(lambda: ended(child))
    assert shared_names(engine.pid) == []


def test_pauses_grow_and_begin_anew() -> None:
    pauses = Pauses()
    assert [pauses.after(0.0) for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert [pauses.after(LONGEST_PAUSE_S + 1), pauses.after(0.0)] == [1, 2]


def test_rings_have_bounds() -> None:
    assert ring_for(1 << 10) == RingShape(32, 1 << 10)
    assert ring_for(3 << 20) == RingShape(21, 3 << 20)
    assert ring_for(1 << 30).num_slots == 4

"""How fast the local KV store is beside plain files and LMCache, and how long the look-up of a long chain takes.

    python scripts/kv_speed.py                        # in a temporary folder; or --folder /data/test
    python scripts/kv_speed.py --lmcache /its/python  # beside LMCache's local backends: pip install lmcache, elsewhere

Prints a table of MB/s: values of 64 KiB to 16 MiB written, then read in another order and compared with what was
written. "plain files" writes one file for each value: no index, no checksum, no bound. What is written goes to the page
cache in every case, and reads come from it, as a hit soon after a save does. The last lines are the look-up of a chain
of 512 links, all of them stored: by the C++ reader of the index alone (one call, names in one piece of memory), by the
store, and through `headrace kvstore serve`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from headrace._core import StoreIndex
from headrace.kv.client import RemoteStore
from headrace.kv.index import LIFETIMES, entry_key
from headrace.kv.local import LocalStore
from headrace.kv.records import RecordKind, RecordSpec
from headrace.kv.server import StoreServer

SIZES = [64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20]
SPACE = b"kv_speed script."
LINKS = 512


class Contender(Protocol):
    def put(self, key: bytes, value: Any) -> None: ...
    def get(self, key: bytes) -> Any: ...
    def close(self) -> None: ...


class Ours:
    """The local store: index, checksums, put-if-absent, eviction."""

    def __init__(self, folder: Path) -> None:
        self._store = LocalStore(folder, 8 << 30, name_space=SPACE)

    def put(self, key: bytes, value: Any) -> None:
        assert self._store.put(key, 0, value)

    def get(self, key: bytes) -> Any:
        return self._store.get(key, 0)

    def close(self) -> None:
        self._store.close()


class PlainFiles:
    """One file for each value."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True)

    def put(self, key: bytes, value: Any) -> None:
        value.tofile(self._folder / key.hex())

    def get(self, key: bytes) -> Any:
        return np.fromfile(self._folder / key.hex(), np.uint8)

    def close(self) -> None:
        """Nothing is open."""


CONTENDERS: dict[str, Callable[[Path], Contender]] = {"headrace": Ours, "plain files": PlainFiles}


def key_of(number: int, size: int) -> bytes:
    return hashlib.sha256(b"%d %d" % (number, size)).digest()


def rates(make: Callable[[Path], Contender], folder: Path, size: int, total: int) -> tuple[float, float]:
    """MB/s written and read."""
    count = max(4, total // size)
    values = [np.random.default_rng(number).integers(0, 256, size, np.uint8) for number in range(min(count, 8))]
    store = make(folder)
    try:
        start = time.perf_counter()
        for number in range(count):
            store.put(key_of(number, size), values[number % len(values)])
        wrote = time.perf_counter() - start
        order, spent = np.random.default_rng(0).permutation(count), 0.0
        for number in order:
            start = time.perf_counter()
            value = store.get(key_of(int(number), size))
            spent += time.perf_counter() - start
            assert np.array_equal(value, values[number % len(values)]), "a wrong byte"
    finally:
        store.close()
        shutil.rmtree(folder, ignore_errors=True)
    return size * count / wrote / 1e6, size * count / spent / 1e6


def lmcache_rates(python: Path, folder: Path, size: int, total: int) -> dict[str, tuple[float, float]]:
    """Both of its backends, in a process of its environment."""
    folder.mkdir()
    script = Path(__file__).with_name("kv_speed_lmcache.py")
    command = [python, script, "--folder", folder, "--size", str(size), "--count", str(max(4, total // size))]
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    try:
        done = subprocess.run(command, env=clean, capture_output=True, text=True, timeout=600, check=False)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not lines:
        raise SystemExit(f"LMCache could not be measured:\n{done.stderr[-2000:]}")
    found: dict[str, tuple[float, float]] = json.loads(lines[-1])
    return found


def measure_rates(folder: Path, total: int, rounds: int, lmcache: Path | None) -> list[dict[str, Any]]:
    """In turns, so that all meet the same machine; medians."""
    rows = []
    for size in SIZES:
        seen: dict[str, list[tuple[float, float]]] = {}
        for _ in range(rounds):
            found = {name: rates(make, folder / "store", size, total) for name, make in CONTENDERS.items()}
            if lmcache is not None:
                found |= lmcache_rates(lmcache, folder / "lmcache", size, total)
            for name, pair in found.items():
                seen.setdefault(name, []).append(pair)
        for name, pairs in seen.items():
            write, read = (statistics.median(pair[i] for pair in pairs) for i in range(2))
            rows.append({"size": size, "store": name, "write_mb_s": write, "read_mb_s": read})
    return rows


def chain_latency(folder: Path, repeats: int) -> dict[str, tuple[float, float]]:
    """Median and 99th percentile of a match of a stored chain of 512 links, in microseconds."""
    spec, keys = [RecordSpec(RecordKind.BLOCK, (0,), 4096)], [key_of(i, 0) for i in range(LINKS)]
    store = LocalStore(folder / "chain", 1 << 30, name_space=SPACE)
    for depth, key in enumerate(keys):
        store.put(key, 0, np.zeros(4096, np.uint8), depth=depth)
    reader, names = (
        StoreIndex(str(folder / "chain" / "index" / "data.mdb")),
        b"".join(entry_key(key, 0) for key in keys),
    )

    def by_reader() -> int:
        count = reader.leading(names, SPACE, time.time(), LIFETIMES)
        return 0 if count is None else count

    found = {"by the C++ reader of the index": _latency(by_reader, repeats)}
    found["by the store in its process"] = _latency(lambda: store.match(keys, spec).grains, repeats)
    server = StoreServer(store, "tcp://127.0.0.1:*")
    thread = threading.Thread(target=server.run)
    thread.start()
    remote = RemoteStore(server.address, timeout_s=60)

    def check() -> int:
        match = remote.match(keys, spec)
        remote.release(match.lease)
        return match.grains

    try:
        found["through a server, with its lease's end"] = _latency(check, repeats)
    finally:
        remote.close()
        server.stop()
        thread.join()
    return found


def _latency(look: Callable[[], int], repeats: int) -> tuple[float, float]:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        grains = look()
        times.append((time.perf_counter() - start) * 1e6)
        assert grains == LINKS
    return statistics.median(times), statistics.quantiles(times, n=100)[98]


def tell(rows: list[dict[str, Any]], latencies: dict[str, tuple[float, float]]) -> None:
    print(f"{'value':>9}  {'store':<24}{'write MB/s':>12}{'read MB/s':>12}")
    for row in rows:
        size = f"{row['size'] >> 10:,} KiB"
        print(f"{size:>9}  {row['store']:<24}{row['write_mb_s']:>12,.0f}{row['read_mb_s']:>12,.0f}")
    for name, (middle, high) in latencies.items():
        print(f"look-up of {LINKS} links, {name}: {middle:,.0f} us (p99 {high:,.0f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="below which to write; default: the system's temporary one")
    parser.add_argument("--total", type=int, default=256 << 20, help="bytes of each store and size")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=300, help="look-ups")
    parser.add_argument("--lmcache", type=Path, help="the Python of an environment that has it")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as temporary:
        rows = measure_rates(Path(temporary), args.total, args.rounds, args.lmcache)
        latencies = chain_latency(Path(temporary), args.repeats)
    if args.json:
        print(json.dumps({"rates": rows, "look_up_us": latencies}))
    else:
        tell(rows, latencies)


if __name__ == "__main__":
    main()

"""What the striped store costs: the code alone, and values written and read with places that are gone, full or slow.

    pip install 'headrace[striped]'
    python scripts/kv_striped.py                            # twelve folders below a temporary one
    python scripts/kv_striped.py --folders /disk*/kv-test   # twelve of yours; what this writes there is removed again

Every value is checked against what was written. Exit code 1 when one was wrong, or found or refused against what a
case says: with three places lost of twelve a value must be refused.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headrace.kv.local import LocalStore
from headrace.kv.shares import SHARES, Code, read_share
from headrace.kv.striped import StripedStore

SPACE = b"kv_striped script"[:16]
SLOW_S = 0.1
ROW = "{:<34} {:>10} {:>10} {:>9} {:>9} {:>8} {:>8} {:>7}"


class Faulty:
    """A local store with what the case does to it."""

    def __init__(self, inner: LocalStore) -> None:
        self._inner = inner
        self.dead = self.full = self.flips = self.slow = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def _may(self) -> bool:
        if self.slow:
            time.sleep(SLOW_S)
        return not self.dead

    def get(self, key: bytes, kind: int) -> Any:
        value = self._inner.get(key, kind) if self._may() else None
        if value is not None and self.flips:
            value[len(value) // 2] ^= 1
        return value

    def put(self, *args: Any, **fields: Any) -> bool:
        return self._may() and not self.full and self._inner.put(*args, **fields)

    def delete(self, key: bytes, kind: int) -> bool:
        return not self.flips and self._inner.delete(key, kind)  # a lying disk does not forget


@dataclass(frozen=True)
class Case:
    """``spoil`` is done before the reads, and before the writes too where ``early``."""

    name: str
    spoil: Callable[[list[Faulty]], None]
    early: bool = False
    readable: bool = True


def faults(**which: list[int]) -> Callable[[list[Faulty]], None]:
    def spoil(places: list[Faulty]) -> None:
        for fault, numbers in which.items():
            for number in numbers:
                setattr(places[number], fault, True)

    return spoil


CASES = [
    Case("all well", faults()),
    Case("two killed", faults(dead=[1, 6])),
    Case("two killed, a third corrupted", faults(dead=[1, 6], flips=[9]), readable=False),
    Case("one corrupted", faults(flips=[9])),
    Case(f"one slow ({SLOW_S * 1000:.0f} ms a call)", faults(slow=[3]), early=True),
    Case("one full", faults(full=[4]), early=True),
]


def value_of(number: int, size: int) -> tuple[bytes, Any]:
    key = hashlib.sha256(b"%d %d" % (number, size)).digest()
    return key, np.random.default_rng(number).integers(0, 256, size, np.uint8)


def timed(work: Callable[..., Any], *arguments: Any) -> tuple[float, Any]:
    start = time.perf_counter()
    result = work(*arguments)
    return time.perf_counter() - start, result


def measure(case: Case, folders: list[Path], size: int, count: int) -> bool:
    """One row of the table; whether every value was what it should be."""
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    places = [Faulty(LocalStore(folder, 4 * size * count, name_space=SPACE)) for folder in folders]
    store = StripedStore(places)
    if case.early:
        case.spoil(places)
    values = [value_of(number, size) for number in range(count)]
    writes = [timed(store.put, key, 0, value) for key, value in values]
    case.spoil(places)
    reads = [timed(store.get, key, 0) for key, _ in values]
    right = sum(got is not None and np.array_equal(got, value) for (_, got), (_, value) in zip(reads, values))
    wrong = sum(got is not None for _, got in reads) - right
    tell(case.name, size, [seconds for seconds, _ in writes], [seconds for seconds, _ in reads], right, wrong)
    store.close()
    return wrong == 0 and right == (count if case.readable else 0) and all(stored for _, stored in writes)


def tell(name: str, size: int, writes: list[float], reads: list[float], right: int, wrong: int) -> None:
    rates = [f"{size * len(seconds) / sum(seconds) / 1e6:,.0f}" for seconds in (writes, reads)]
    times = [f"{np.quantile(s, share) * 1000:.1f}" for s, share in ((writes, 0.99), (reads, 0.5), (reads, 0.99))]
    print(ROW.format(name, *rates, *times, f"{right}/{len(reads)}", wrong))


def measure_code(size: int, seconds: float = 1.0) -> None:
    """GB of values per second, on one thread: cutting, joining ten of data, joining with two of parity."""
    code, (key, value) = Code(), value_of(0, size)
    cut = [read_share(share, key, 0) for share in code.cut(key, 0, value)]
    shares = {share.index: share for share in cut if share is not None}
    whole = {i: shares[i] for i in range(10)}
    lacking = {i: shares[i] for i in range(SHARES) if i not in (2, 5)}
    works: dict[str, Callable[[], Any]] = {
        "cut": lambda: code.cut(key, 0, value),
        "join, all data": lambda: code.join(whole),
        "join, two lost": lambda: code.join(lacking),
    }
    for name, work in works.items():
        work()
        count, start = 0, time.perf_counter()
        while (passed := time.perf_counter() - start) < seconds:
            work()
            count += 1
        print(f"{name}, {size >> 10} KiB, checksums included: {size * count / passed / 1e9:.2f} GB/s")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folders", type=Path, nargs=SHARES)
    parser.add_argument("--size", type=int, default=3 << 20, help="bytes of a value")
    parser.add_argument("--count", type=int, default=100, help="values of each case")
    args = parser.parse_args()
    measure_code(args.size)
    print(ROW.format("", "write MB/s", "read MB/s", "w p99 ms", "r p50 ms", "r p99 ms", "right", "wrong"))
    with tempfile.TemporaryDirectory() as temporary:
        folders = [folder / "headrace-striped" for folder in args.folders or ()]
        folders = folders or [Path(temporary) / str(i) for i in range(SHARES)]
        try:
            good = [measure(case, folders, args.size, args.count) for case in CASES]
        finally:
            for folder in folders:
                shutil.rmtree(folder, ignore_errors=True)
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())

"""A process that puts values FIRST..LAST into a store, tells each once it is published, and may then hold on."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from kv_values import put

from headrace.kv.local import LocalStore


def main(folder: str, first: str, last: str, mode: str = "close") -> None:
    store = LocalStore(Path(folder), 8 << 30, segment_bytes=100_000)
    for number in range(int(first), int(last)):
        if put(store, number):
            print(number, flush=True)
    if mode == "hold":
        print("holding", flush=True)
        time.sleep(120)
    store.close()


if __name__ == "__main__":
    main(*sys.argv[1:])

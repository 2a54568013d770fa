"""LMCache's local CPU and disk backends, driven directly: MB/s written and read, as JSON. Runs in its environment.

    python scripts/kv_speed.py --lmcache /path/to/its/python        # calls this, in turns with the others

A put is allocating, copying the value in and submitting it; the disk writes behind, and the clock stops when all is
written. A get of the disk is reading it; one of the CPU backend hands out what it holds, so the value is copied out, as
whoever fills a pool must.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

DEADLINE_S = 60.0


def value_of(number: int, size: int) -> Any:
    return np.random.default_rng(number).integers(0, 256, size, np.uint8)


class Backends:
    """Both, over one pool of host memory."""

    def __init__(self, folder: Path, pool_bytes: int) -> None:
        from lmcache.v1.config import LMCacheEngineConfig
        from lmcache.v1.memory_allocators.mixed_memory_allocator import MixedMemoryAllocator
        from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend
        from lmcache.v1.storage_backend.local_disk_backend import LocalDiskBackend

        config = LMCacheEngineConfig.from_defaults(
            local_cpu=True, max_local_cpu_size=8.0, local_disk=str(folder), max_local_disk_size=16.0
        )
        self.cpu = LocalCPUBackend(config, None, "cpu", memory_allocator=MixedMemoryAllocator(pool_bytes))
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self.disk = LocalDiskBackend(config, self._loop, self.cpu, "cpu")

    def filled(self, value: Any) -> Any:
        from lmcache.v1.memory_management import MemoryFormat

        held = self.cpu.allocate(torch.Size([len(value)]), torch.uint8, fmt=MemoryFormat.KV_2LTD)
        assert held is not None, "the pool is full"
        held.tensor.copy_(torch.from_numpy(value))
        return held

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)


def key_of(number: int) -> Any:
    from lmcache.utils import CacheEngineKey

    return CacheEngineKey("kv_speed", 1, 0, number, torch.uint8)


def put_on_disk(backends: Backends, number: int, value: Any) -> threading.Event:
    held, written = backends.filled(value), threading.Event()
    backends.disk.submit_put_task(key_of(number), held, lambda _: written.set())
    held.ref_count_down()
    return written


def get_from_disk(backends: Backends, number: int) -> Any:
    held = backends.disk.get_blocking(key_of(number))
    assert held is not None
    return held, held.tensor.numpy()


def put_in_memory(backends: Backends, number: int, value: Any) -> threading.Event:
    held, written = backends.filled(value), threading.Event()
    backends.cpu.submit_put_task(key_of(number), held)
    held.ref_count_down()
    written.set()
    return written


def get_from_memory(backends: Backends, number: int) -> Any:
    held = backends.cpu.get_blocking(key_of(number))
    assert held is not None
    return held, held.tensor.numpy().copy()


def rates(backends: Backends, put: Any, get: Any, size: int, count: int) -> tuple[float, float]:
    """MB/s written and read; every value is compared."""
    values = [value_of(number, size) for number in range(min(count, 8))]
    start = time.perf_counter()
    writing = [put(backends, number, values[number % len(values)]) for number in range(count)]
    assert all(written.wait(DEADLINE_S) for written in writing), "was not written"
    wrote, spent = time.perf_counter() - start, 0.0
    for number in np.random.default_rng(0).permutation(count):
        start = time.perf_counter()
        held, value = get(backends, int(number))
        spent += time.perf_counter() - start
        assert np.array_equal(value.reshape(-1), values[number % len(values)]), "a wrong byte"
        held.ref_count_down()
    return size * count / wrote / 1e6, size * count / spent / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--count", type=int, required=True)
    args = parser.parse_args()
    backends = Backends(args.folder, 2 * args.size * args.count + (64 << 20))
    found = {
        "LMCache disk": rates(backends, put_on_disk, get_from_disk, args.size, args.count),
        "LMCache CPU": rates(backends, put_in_memory, get_from_memory, args.size, args.count),
    }
    backends.close()
    sys.stdout.write("\n" + json.dumps(found) + "\n")


if __name__ == "__main__":
    main()

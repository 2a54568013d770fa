"""This machine's limits: how fast it reads memory, multiplies floats and multiplies bytes.

Measured with the loops of ``csrc/kernels/roofline.h``; what follows for a model is in ``model_limits``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from headrace import _kernels, env
from headrace.contract.errors import ConfigError
from headrace.kernels.runtime import configure, usable_processors

from .machine import last_level_cache_bytes
from .progress import now
from .report import Curve, Report
from .stats import Spread, spread, timed

ROUNDS = 4_000_000  # tens of milliseconds
MIN_BUFFER_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Peaks:
    """Per second: bytes read, float32 and byte operations (a multiply-add is two)."""

    num_threads: int
    read_bytes: Spread
    float_ops: Spread
    byte_ops: Spread
    float_method: str
    byte_method: str


def buffer_bytes() -> int:
    """Four times the last cache, so that little of a pass can come from it."""
    return max(MIN_BUFFER_BYTES, 4 * last_level_cache_bytes())


def measure_peaks(num_threads: int, repeats: int = 5) -> Peaks:
    """Sets the kernel threads to ``num_threads`` and leaves them so."""
    now(f"limits with {num_threads} threads")
    _kernels.set_num_threads(num_threads)
    float_ops, float_method = _loop(_kernels.multiply_floats, repeats)
    byte_ops, byte_method = _loop(_kernels.multiply_bytes, repeats)
    return Peaks(num_threads, read_bandwidth(repeats), float_ops, byte_ops, float_method, byte_method)


def read_bandwidth(repeats: int = 5) -> Spread:
    """Bytes per second with the threads as they are set."""
    words = np.ones(buffer_bytes() // 8, np.uint64)
    return timed(lambda: _kernels.read_all(words), repeats).inverted(words.nbytes)


def _loop(run: Callable[[int], tuple[float, float, str]], repeats: int) -> tuple[Spread, str]:
    run(ROUNDS // 10)
    rates, method = [], ""
    for _ in range(repeats):
        start = perf_counter()
        operations, _, method = run(ROUNDS)
        rates.append(operations / (perf_counter() - start))
    return spread(rates), method


def bench_roofline(max_threads: int | None = None, repeats: int = 5) -> Report:
    """Limits with 1 thread and up to every usable processor. Raises ConfigError for a thread count below 1."""
    if max_threads is not None and max_threads < 1:
        raise ConfigError("threads", f"must be at least 1, got {max_threads}")
    most = max_threads or env.num_threads() or usable_processors()
    configure("cpu", most, env.isa())
    report = Report("roofline", {"buffer_bytes": buffer_bytes(), "max_threads": most, "repeats": repeats})
    peaks = [measure_peaks(n, repeats) for n in thread_counts(most)]
    for each in peaks:
        threads = f"{each.num_threads} thread" + ("s" if each.num_threads > 1 else "")
        report.add(f"memory read, {threads}", "GB/s", each.read_bytes.scaled(1e-9))
        report.add(f"float32 multiply-add, {threads}", "Gop/s", each.float_ops.scaled(1e-9), note=each.float_method)
        report.add(f"int8 multiply-add, {threads}", "Gop/s", each.byte_ops.scaled(1e-9), note=each.byte_method)
    points = [(float(each.num_threads), each.read_bytes.median * 1e-9) for each in peaks]
    report.curves.append(Curve("Memory read", "threads", "GB/s", points))
    return report.finish()


def thread_counts(most: int) -> list[int]:
    """1, 2, 4, ... and ``most``."""
    counts = [1 << i for i in range(most.bit_length()) if 1 << i < most]
    return [*counts, most]

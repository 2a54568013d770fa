"""The profiled cost curve, and its cache on disk: measured once per model, machine and mode, kept for a while.

A file that is old, damaged or of another key is measured again, never an error: it only saves time at start.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import msgspec

from headrace.contract.files import read_small

LIFETIME_S = 3600.0
MAX_CURVE_BYTES = 1 << 20

log = logging.getLogger(__name__)


class CurveKey(msgspec.Struct, frozen=True):
    """What a curve holds for. ``machine`` names the processor and the kernel threads, ``mode`` how steps are run."""

    model: str
    machine: str
    mode: str

    @property
    def file_name(self) -> str:
        text = msgspec.json.encode(self)
        return f"cost-{hashlib.sha256(text).hexdigest()[:24]}.json"


class Curve(msgspec.Struct, frozen=True):
    """``times_ms[i]`` of a step of ``sizes[i]`` rows, measured at ``measured_at`` (seconds since 1970)."""

    key: CurveKey
    sizes: list[int]
    times_ms: list[float]
    measured_at: float


def measure(
    key: CurveKey,
    sizes: Sequence[int],
    run: Callable[[int], None],
    *,
    repeats: int = 5,
    clock: Callable[[], float] = time.perf_counter,
    wall_time: float | None = None,
) -> Curve:
    """``run(size)`` does one step of that many rows and returns when it is done. The median of ``repeats`` counts,
    after one run that does not."""
    times = []
    for size in sizes:
        run(size)
        times.append(median(_timed(run, size, clock) for _ in range(repeats)))
    return Curve(key, list(sizes), times, time.time() if wall_time is None else wall_time)


def _timed(run: Callable[[int], None], size: int, clock: Callable[[], float]) -> float:
    start = clock()
    run(size)
    return max((clock() - start) * 1000, 1e-6)  # a curve holds positive times, whatever the clock's grain


def load(
    folder: Path, key: CurveKey, sizes: Sequence[int], *, lifetime_s: float = LIFETIME_S, now: float
) -> Curve | None:
    """The curve kept for this key and these sizes, or None when there is none that may still be used."""
    path = folder / key.file_name
    try:
        curve = msgspec.json.decode(read_small(path, MAX_CURVE_BYTES), type=Curve)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        log.warning("%s: not a cost curve, measuring again: %s", path, error)
        return None
    sound = curve.key == key and curve.sizes == list(sizes) and len(curve.times_ms) == len(curve.sizes)
    sound = sound and all(0 < ms < float("inf") for ms in curve.times_ms)
    return curve if sound and 0 <= now - curve.measured_at < lifetime_s else None


def save(folder: Path, curve: Curve) -> None:
    """Keeps a curve; readers see the old file or the new one, never a part. A disk that refuses is only a warning."""
    path = folder / curve.key.file_name
    part = path.with_name(f"{path.name}.{time.monotonic_ns()}.part")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        part.write_bytes(msgspec.json.encode(curve))
        part.replace(path)
    except OSError as error:
        log.warning("%s: the cost curve cannot be kept: %s", path, error)
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)

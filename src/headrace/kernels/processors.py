"""How many threads this process has time for. Without torch, so that a front that never computes can ask."""

from __future__ import annotations

from headrace.contract.sizes import MAX_THREADS

from .placement import default_threads
from .topology import usable


def usable_processors() -> int:
    """Threads that this process's processors and control group have time for, at most what the kernels' pool takes."""
    return min(default_threads(usable()), MAX_THREADS)

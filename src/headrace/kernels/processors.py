"""How many processors this process may use. Without torch, so that a front that never computes can ask."""

from __future__ import annotations

import os

MAX_THREADS = 1024  # what the kernels' pool takes


def usable_processors() -> int:
    """Processors this process may run on (its affinity mask), at most what the kernels' pool takes."""
    return min(len(os.sched_getaffinity(0)), MAX_THREADS)

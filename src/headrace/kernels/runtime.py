"""Threads and instruction set of a process, set once at launch. Neither choice of threads changes a bit of a result;
the instruction set may (scalar rounds differently)."""

from __future__ import annotations

import os

import torch

from headrace.contract.errors import ConfigError

MAX_THREADS = 1024  # what the kernels' pool takes


def usable_processors() -> int:
    """Processors this process may run on (its affinity mask), at most what the kernels' pool takes."""
    return min(len(os.sched_getaffinity(0)), MAX_THREADS)


def configure(backend: str, num_threads: int, isa: str | None = None) -> None:
    """Gives the threads to whoever computes; ``isa`` None keeps the best there is.

    With the ``cpu`` backend torch gets one thread: its own pool spins after work and would take the processors from
    the kernels'. Raises ConfigError for an instruction set this machine or build lacks, and for a number of threads
    outside 1 to 1024.
    """
    if not 1 <= num_threads <= MAX_THREADS:
        raise ConfigError("num_threads", f"must lie between 1 and {MAX_THREADS}, got {num_threads}")
    torch.set_num_threads(1 if backend == "cpu" else num_threads)
    if backend != "cpu":
        return
    from .cpu import runtime

    runtime.set_num_threads(num_threads)
    if isa is None:
        return
    if isa not in runtime.available_isas():
        known = ", ".join(runtime.available_isas())
        raise ConfigError("HEADRACE_ISA", f"{isa!r} is not available here; choose one of {known}")
    runtime.set_isa(isa)


def arithmetic(backend: str) -> str:
    """What decides the bits of a result: the backend and, on the CPU, its instruction set."""
    if backend != "cpu":
        return backend
    from .cpu import runtime

    return f"{backend} {runtime.isa()}"

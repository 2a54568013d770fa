"""Threads, their places and the instruction set of a process, set once at launch. No choice of threads changes a bit of
a result; the instruction set may (scalar rounds differently)."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

from headrace.contract.errors import ConfigError
from headrace.contract.sizes import MAX_THREADS

from .placement import Placement, place
from .processors import usable_processors
from .topology import usable

__all__ = ["caller_binding", "configure", "usable_processors"]
log = logging.getLogger(__name__)


def configure(backend: str, num_threads: int, isa: str | None = None, pinning: str = "none") -> Placement:
    """Gives the threads to whoever computes; ``isa`` None keeps the best there is. Returns where threads run.

    With the ``cpu`` backend torch gets one thread: its own pool spins after work and would take the processors from
    the kernels'. Raises ConfigError for an instruction set this machine or build lacks, and for a number of threads
    outside 1 to 1024.
    """
    if not 1 <= num_threads <= MAX_THREADS:
        raise ConfigError("num_threads", f"must lie between 1 and {MAX_THREADS}, got {num_threads}")
    if num_threads > usable_processors():
        log.warning("%d threads for %d processors: they will wait for each other", num_threads, usable_processors())
    torch.set_num_threads(1 if backend == "cpu" else num_threads)
    if backend != "cpu":
        return Placement()
    from .cpu import runtime

    runtime.set_num_threads(num_threads)
    if isa is not None and isa not in runtime.available_isas():
        known = ", ".join(runtime.available_isas())
        raise ConfigError("HEADRACE_ISA", f"{isa!r} is not available here; choose one of {known}")
    if isa is not None:
        runtime.set_isa(isa)
    return _settle(place(usable(), num_threads, pinning))


def _settle(placement: Placement) -> Placement:
    """Binds the pool's threads and the memory they will touch; what the system refuses is left to it, and said."""
    from .cpu import runtime

    if not runtime.bind(placement.processors):
        log.warning(
            "the system refused to bind threads to processors %s; they run where it puts them", placement.processors
        )
        runtime.bind(())
        return Placement()
    if placement.nodes and not runtime.prefer_nodes(placement.nodes):
        log.warning(
            "the system refused to take memory from nodes %s; pages lie where they are touched", placement.nodes
        )
    return placement


def caller_binding(placement: Placement) -> Callable[[], None]:
    """What the thread that calls kernels does first: it is thread 0 of the pool."""

    def enter() -> None:
        if placement.processors:
            from .cpu import runtime

            runtime.bind_caller(placement.processors[0])
            runtime.prefer_nodes(placement.nodes)

    return enter


def arithmetic(backend: str) -> str:
    """What decides the bits of a result: the backend and, on the CPU, its instruction set."""
    if backend != "cpu":
        return backend
    from .cpu import runtime

    return f"{backend} {runtime.isa()}"

"""Process-wide settings of the CPU kernels: thread count and instruction set. Results do not depend on either's
thread count; they do on the instruction set, so it is chosen once, at launch."""

from __future__ import annotations

import os

import torch

from headrace.contract.errors import ConfigError


def usable_processors() -> int:
    """Processors this process may run on (its affinity mask)."""
    return len(os.sched_getaffinity(0))


def configure(num_threads: int, isa: str | None = None) -> None:
    """Sets the kernel pool and torch to ``num_threads``; ``isa`` None keeps the best there is.

    Raises ConfigError for an instruction set this machine or build lacks.
    """
    from headrace import _kernels

    torch.set_num_threads(num_threads)
    _kernels.set_num_threads(num_threads)
    if isa is not None:
        if isa not in _kernels.available_isas():
            known = ", ".join(_kernels.available_isas())
            raise ConfigError("HEADRACE_ISA", f"{isa!r} is not available here; choose one of {known}")
        _kernels.set_isa(isa)

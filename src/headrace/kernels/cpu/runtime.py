"""The CPU kernels' process-wide settings: instruction set and threads.

Threads never change a bit. AVX2 and AVX-512 agree bit for bit, scalar rounds differently. Packed weights suit
every instruction set.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace import _kernels


def isa() -> str:
    """Name of the instruction set in use: ``avx512``, ``avx2`` or ``scalar``."""
    name: str = _kernels.isa()
    return name


def available_isas() -> list[str]:
    """Instruction sets this processor runs, best first."""
    names: list[str] = _kernels.available_isas()
    return names


def set_isa(name: str) -> None:
    """Use this instruction set from now on. ValueError when it is not available."""
    _kernels.set_isa(name)


def num_threads() -> int:
    """Threads that share a kernel's work, the caller included; at first one per usable processor."""
    count: int = _kernels.num_threads()
    return count


def set_num_threads(n: int) -> None:
    """Resize the pool. ValueError unless 1 <= n <= 1024."""
    _kernels.set_num_threads(n)


def bind(processors: Sequence[int]) -> bool:
    """Bind thread i of the pool to ``processors[i]``; the thread that calls kernels is number 0 and binds itself.

    False when the system refuses. ValueError unless there is one for each thread, or none (nothing is bound).
    """
    done: bool = _kernels.bind_threads(list(processors))
    return done


def bind_caller(processor: int) -> bool:
    """Bind the calling thread. False when the system refuses."""
    done: bool = _kernels.bind_this_thread(processor)
    return done


def prefer_nodes(nodes: Sequence[int]) -> bool:
    """New pages of the calling thread come from these memory nodes. False when the system refuses."""
    done: bool = _kernels.prefer_nodes(list(nodes))
    return done

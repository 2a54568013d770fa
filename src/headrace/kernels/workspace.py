"""Where ops put their results: fresh memory, or, while a step is being captured, buffers that a program will reuse.

During a capture a result's memory must stay where it is for as long as the program lives, yet results that are no
longer needed should share it. Both follow from Python's own reference counts: a buffer returns to the arena when the
last tensor on it is gone, and the calls recorded after that may use it again. This is sound because a program replays
its calls in the order in which they were recorded.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod

import numpy as np
import torch
from torch import Tensor

ALIGNMENT = 64  # bytes


class Arena:
    """Buffers of a capture. They live as long as the arena."""

    def __init__(self) -> None:
        self._buffers: list[np.ndarray] = []
        self._free: dict[int, list[np.ndarray]] = {}

    def empty(self, shape: tuple[int, ...]) -> Tensor:
        """A float32 tensor of this shape on a free buffer of its size, or on a new one."""
        size = max(1, prod(shape))
        free = self._free.setdefault(size, [])
        buffer = free.pop() if free else self._new(size)
        window = buffer[:]  # an object of its own: it dies with the tensors on it, the buffer does not
        weakref.finalize(window, free.append, buffer)
        return torch.from_numpy(window)[: prod(shape)].view(shape)

    def _new(self, size: int) -> np.ndarray:
        raw = np.zeros(size + ALIGNMENT // 4, dtype=np.float32)
        start = -raw.ctypes.data % ALIGNMENT // 4
        self._buffers.append(raw)
        return raw[start : start + size]

    @property
    def nbytes(self) -> int:
        return sum(buffer.nbytes for buffer in self._buffers)


class _Current(threading.local):
    arena: Arena | None = None


_current = _Current()


def empty(*shape: int) -> Tensor:
    """Uninitialised float32 memory for an op's result."""
    arena = _current.arena
    return torch.empty(shape) if arena is None else arena.empty(shape)


def empty_ids(count: int) -> Tensor:
    """Uninitialised int32 memory for ``count`` ids."""
    arena = _current.arena
    return torch.empty(count, dtype=torch.int32) if arena is None else arena.empty((count,)).view(torch.int32)


def rows_of(x: Tensor) -> Tensor:
    """``x`` with its rows in one stretch of memory. A capture refuses to copy: the copy would not be replayed."""
    if x.is_contiguous():
        return x
    if _current.arena is not None:
        raise ValueError("a captured op was given rows that are not contiguous")
    return x.contiguous()


@contextmanager
def allocating_from(arena: Arena) -> Iterator[None]:
    """Within the block, this thread's results come from ``arena``."""
    before, _current.arena = _current.arena, arena
    try:
        yield
    finally:
        _current.arena = before

"""Recording a step's kernel calls into native programs, and replaying them.

A capture runs the model's own forward once over full-size inputs; ops called meanwhile are recorded instead of run.
FULL makes one program. PIECEWISE ends the program at each attention, which is then called as usual. The same calls
are made in either case, so replays give the bits of an eager step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from headrace import _kernels

from .ops import Ops
from .workspace import Arena, allocating_from

Inputs = Sequence[Tensor]  # int32, in the order given to the capture


@dataclass(frozen=True, slots=True)
class Sizes:
    """Rows of a step: T tokens, R logits rows, S slices, and the width of its block tables."""

    tokens: int
    logits: int
    slices: int
    max_blocks: int


class Recording:
    """Programs and, between them, calls made from Python; replayed in order."""

    def __init__(self, capacity_tokens: int, capacity_logits: int, inputs: Inputs) -> None:
        self._capacity = capacity_tokens, capacity_logits
        self._inputs = list(inputs)
        self._segments: list[_kernels.Program | Callable[[Sizes, Inputs], None]] = []
        self.arena = Arena()

    @contextmanager
    def capturing(self) -> Iterator[None]:
        """Ops called within the block, on this thread, are recorded."""
        self._start()
        try:
            with allocating_from(self.arena):
                yield
        finally:
            _kernels.Program.stop()

    def _start(self) -> None:
        program = _kernels.Program(*self._capacity)
        for index, tensor in enumerate(self._inputs):
            program.input(index, tensor.numpy())
        self._segments.append(program)
        program.start()

    def eager_attention(self, ops: Ops) -> Ops:
        """``ops`` whose attention ends the program, to be called from Python at each replay."""

        def attention(
            q: Tensor, k: Tensor, v: Tensor, table: Tensor, starts: Tensor, lens: Tensor, scale: float, window: int
        ) -> Tensor:
            out = self.arena.empty(tuple(q.shape))
            where = [self._index(tensor) for tensor in (table, starts, lens)]

            def call(sizes: Sizes, inputs: Inputs) -> None:
                now_table, now_starts, now_lens = (inputs[i] for i in where)
                seen = ops.paged_attention(q[: sizes.tokens], k, v, now_table, now_starts, now_lens, scale, window)
                out[: sizes.tokens] = seen

            _kernels.Program.stop()
            self._segments.append(call)
            self._start()
            return out

        return replace(ops, paged_attention=attention)

    def _index(self, tensor: Tensor) -> int:
        return next(i for i, known in enumerate(self._inputs) if known.data_ptr() == tensor.data_ptr())

    def run(self, sizes: Sizes, inputs: Inputs) -> None:
        """Replays over a step. Raises ValueError when it exceeds the capacity or an index is out of range."""
        arrays = [tensor.numpy() for tensor in inputs]
        for segment in self._segments:
            if isinstance(segment, _kernels.Program):
                segment.run(sizes.tokens, sizes.logits, sizes.slices, sizes.max_blocks, arrays)
            else:
                segment(sizes, inputs)

    def timed_run(self, sizes: Sizes, inputs: Inputs) -> list[tuple[str, float]]:
        """Replays a FULL capture; what each call is and the seconds it took."""
        arrays, calls = [tensor.numpy() for tensor in inputs], []
        for segment in self._segments:
            assert isinstance(segment, _kernels.Program), "a call from Python has no name"
            times = segment.timed_run(sizes.tokens, sizes.logits, sizes.slices, sizes.max_blocks, arrays)
            calls += list(zip(segment.names(), times))
        return calls

    @property
    def num_calls(self) -> int:
        """Recorded kernel calls, those made from Python left out."""
        return sum(len(s) for s in self._segments if isinstance(s, _kernels.Program))

    @property
    def num_segments(self) -> int:
        return len(self._segments)


def zeros(*shape: int) -> Tensor:
    """An input to capture with."""
    return torch.zeros(shape, dtype=torch.int32)

"""Between device blocks that are bytes and records of 128 tokens, on the device thread, in its order of steps.

A record holds, group after group, what is used of the grain's blocks, from the first that its window reaches back to.
Only an engine with the same block size can use it. Copies bits; knows nothing of what they mean.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
from torch import Tensor

from headrace.contract.errors import WorkerError
from headrace.contract.layout import RecordLayout
from headrace.contract.ports import Bytes
from headrace.kv.records import RecordSpec, blocks_per_grain

Launch = Callable[[Callable[[], Any]], "Future[Any]"]


class BlockTransfer:
    """A BlockMover over ``pool`` (blocks, 1, block size, bytes) uint8. ``launch`` queues work for the device thread."""

    def __init__(
        self, pool: Tensor, layout: RecordLayout, specs: Sequence[RecordSpec], block_size: int, launch: Launch
    ) -> None:
        self._pool: Bytes = pool.flatten(1).numpy()
        self._specs, self._launch, self._block_size = specs, launch, block_size
        self._used = [layout.used_bytes(group, block_size) for group in range(len(layout.groups))]
        self._per_grain = blocks_per_grain(block_size)

    def read(self, grains: Sequence[Sequence[int]]) -> Future[list[dict[int, Bytes]]]:
        return self._launch(lambda: [self._gather(grain) for grain in grains])

    def write(self, blocks: Sequence[tuple[int, int, int]], payloads: Mapping[tuple[int, int], Bytes]) -> Future[None]:
        return self._launch(lambda: self._scatter(blocks, payloads))

    # -- device thread ------------------------------------------------------------------------------------------

    def _gather(self, blocks: Sequence[int]) -> dict[int, Bytes]:
        whole = [spec for spec in self._specs if spec.whole(blocks, len(self._used))]
        return {int(spec.kind): self._record(spec, blocks) for spec in whole}

    def _record(self, spec: RecordSpec, blocks: Sequence[int]) -> Bytes:
        payload = np.empty(spec.bytes_per_grain, np.uint8)
        first = spec.first_block(self._block_size)
        for group, part in self._parts(spec, payload).items():
            at = group * self._per_grain
            part[:] = self._pool[np.asarray(blocks[at + first : at + self._per_grain]), : part.shape[1]]
        return payload

    def _scatter(self, blocks: Sequence[tuple[int, int, int]], payloads: Mapping[tuple[int, int], Bytes]) -> None:
        spec_of = {group: spec for spec in self._specs for group in spec.groups}
        for group, position, block in blocks:
            spec, (grain, place) = spec_of[group], divmod(position, self._per_grain)
            part = self._parts(spec, payloads[grain, int(spec.kind)])[group]
            self._pool[block, : part.shape[1]] = part[place - spec.first_block(self._block_size)]

    def _parts(self, spec: RecordSpec, payload: Bytes) -> dict[int, Bytes]:
        """(blocks, bytes used of one) of each group, over the payload's own memory."""
        if len(payload) != spec.bytes_per_grain:
            raise WorkerError(f"a record of {len(payload)} bytes where {spec.bytes_per_grain} are due")
        blocks, parts, at = self._per_grain - spec.first_block(self._block_size), {}, 0
        for group in spec.groups:
            size = blocks * self._used[group]
            parts[group] = payload[at : at + size].reshape(blocks, -1)
            at += size
        return parts

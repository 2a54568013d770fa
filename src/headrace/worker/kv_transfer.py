"""Between device blocks and records of 128 tokens: gathers and scatters KV on the device thread, in its order of steps.

A record holds, layer after layer, keys then values, each (num_kv_heads, 128, row) in the cache's dtype, whatever
the block size. Copies bits; computes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from headrace.contract.errors import WorkerError
from headrace.contract.ports import Bytes
from headrace.kv.records import RecordSpec, blocks_per_grain
from headrace.models.context import LayerKV

Launch = Callable[[Callable[[], Any]], "Future[Any]"]
Index = slice | list[int]


@dataclass(frozen=True, slots=True)
class Part:
    """What a group brings to a record: ``rows`` of the record, which are these ``slots`` of the group's blocks."""

    group: int
    rows: Index
    slots: Index


class KVTransfer:
    """A BlockMover over the pool's tensors. ``launch`` queues work for the device thread."""

    def __init__(self, layers: Sequence[LayerKV], specs: Sequence[RecordSpec], block_size: int, launch: Launch) -> None:
        self._layers, self._specs, self._launch = layers, specs, launch
        self._block_size, self._per_grain = block_size, blocks_per_grain(block_size)
        self._num_groups = sum(len(spec.groups) for spec in specs)
        self._memory = _memory(layers[0])
        slots = [_slot(layer, self._memory) for layer in layers]
        self._parts = {spec.kind: [_part(spec, group, layers, slots) for group in spec.groups] for spec in specs}

    def read(self, grains: Sequence[Sequence[int]]) -> Future[list[dict[int, Bytes]]]:
        return self._launch(lambda: [self._gather(grain) for grain in grains])

    def write(self, blocks: Sequence[tuple[int, int, int]], payloads: Mapping[tuple[int, int], Bytes]) -> Future[None]:
        return self._launch(lambda: self._scatter(blocks, payloads))

    # -- device thread ------------------------------------------------------------------------------------------

    def _gather(self, blocks: Sequence[int]) -> dict[int, Bytes]:
        out = {}
        for spec in self._specs:
            if spec.whole(blocks, self._num_groups):
                out[int(spec.kind)] = self._gather_record(spec, blocks)
        return out

    def _of_group(self, blocks: Sequence[int], group: int) -> Sequence[int]:
        return blocks[group * self._per_grain : (group + 1) * self._per_grain]

    def _gather_record(self, spec: RecordSpec, blocks: Sequence[int]) -> Bytes:
        first = spec.first_block(self._block_size)
        make = np.zeros if first else np.empty  # zeros where a window has passed
        payload = make(spec.bytes_per_grain, np.uint8)
        record = self._as_blocks(payload, spec)
        for part in self._parts[spec.kind]:
            ids = self._of_group(blocks, part.group)
            for place in range(first, self._per_grain):
                record[:, :, :, place][part.rows] = self._memory[ids[place]][part.slots]
        return payload

    def _as_blocks(self, payload: Bytes, spec: RecordSpec) -> Bytes:
        """(layers, 2, heads, blocks of the grain, block size, bytes of a row), over the payload's own memory."""
        heads, row = self._memory.shape[3], self._memory.shape[5]
        if len(payload) != spec.bytes_per_grain:
            raise WorkerError(f"a record of {len(payload)} bytes where {spec.bytes_per_grain} are due")
        return payload.reshape(len(spec.layers), 2, heads, self._per_grain, self._block_size, row)

    def _scatter(self, blocks: Sequence[tuple[int, int, int]], payloads: Mapping[tuple[int, int], Bytes]) -> None:
        places: dict[tuple[int, int], list[tuple[int, int]]] = {}  # (grain, group) -> (place in the grain, block)
        for group, position, block in blocks:
            grain, place = divmod(position, self._per_grain)
            places.setdefault((grain, group), []).append((place, block))
        for spec in self._specs:
            for part in self._parts[spec.kind]:
                for (grain, group), pairs in places.items():
                    if group == part.group:
                        self._scatter_record(spec, part, pairs, payloads[grain, int(spec.kind)])

    def _scatter_record(self, spec: RecordSpec, part: Part, pairs: Sequence[tuple[int, int]], payload: Bytes) -> None:
        record = self._as_blocks(payload, spec)
        for place, block in pairs:
            self._memory[block][part.slots] = record[:, :, :, place][part.rows]


def _memory(layer: LayerKV) -> Bytes:
    """(blocks, layers of a group, 2, heads, block size, bytes of a row): all that the pool is. A block of all layers is
    one copy then, where NumPy's call takes longer than the bytes of one layer."""
    view = layer.k.view(torch.uint8)
    whole: Bytes = torch.empty(0, dtype=torch.uint8).set_(layer.k.untyped_storage()).numpy()
    return whole.reshape(view.shape[0], -1, 2, *view.shape[1:])


def _slot(layer: LayerKV, memory: Bytes) -> int:
    """Where a layer lies in its group's blocks."""
    offset = layer.k.data_ptr() - memory.ctypes.data
    slot, rest = divmod(offset, memory.strides[1])
    if rest or layer.v.data_ptr() - layer.k.data_ptr() != memory.strides[2] or slot >= memory.shape[1]:
        raise WorkerError("the KV pool is not one piece of memory for all layers")
    return slot


def _part(spec: RecordSpec, group: int, layers: Sequence[LayerKV], slots: Sequence[int]) -> Part:
    rows = [i for i, layer in enumerate(spec.layers) if layers[layer].group == group]
    return Part(group, _index(rows), _index([slots[spec.layers[i]] for i in rows]))


def _index(numbers: Sequence[int]) -> Index:
    """These rows of an array: as a slice, which copies nothing, where they lie at equal distances."""
    steps = {b - a for a, b in pairwise(numbers)} or {1}
    step = steps.pop()
    return slice(numbers[0], numbers[-1] + 1, step) if not steps and step > 0 else list(numbers)

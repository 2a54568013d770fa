"""Between device blocks and records of 128 tokens: gathers and scatters KV on the device thread, in its order of steps.

A record holds, layer after layer, keys then values, each (num_kv_heads, 128, row) in the cache's dtype, whatever
the block size. Copies bits; computes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.contract.errors import WorkerError
from headrace.contract.ports import Bytes
from headrace.kv.records import RecordSpec, blocks_per_grain
from headrace.models.context import LayerKV

Launch = Callable[[Callable[[], Any]], "Future[Any]"]


class KVTransfer:
    """A BlockMover over the pool's tensors. ``launch`` queues work for the device thread."""

    def __init__(self, layers: Sequence[LayerKV], specs: Sequence[RecordSpec], block_size: int, launch: Launch) -> None:
        self._layers, self._specs, self._launch = layers, specs, launch
        self._block_size, self._per_grain = block_size, blocks_per_grain(block_size)
        self._num_groups = sum(len(spec.groups) for spec in specs)
        self._pool = [(_as_bytes(layer.k), _as_bytes(layer.v)) for layer in layers]

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
        for i, layer in enumerate(spec.layers):
            k, v = self._pool[layer]
            ids = self._of_group(blocks, self._layers[layer].group)
            for place in range(first, self._per_grain):
                record[i, 0, :, place] = k[ids[place]]
                record[i, 1, :, place] = v[ids[place]]
        return payload

    def _as_blocks(self, payload: Bytes, spec: RecordSpec) -> Bytes:
        """(layers, 2, heads, blocks of the grain, block size, bytes of a row), over the payload's own memory."""
        _, heads, _, row = self._pool[spec.layers[0]][0].shape
        if len(payload) != spec.bytes_per_grain:
            raise WorkerError(f"a record of {len(payload)} bytes where {spec.bytes_per_grain} are due")
        return payload.reshape(len(spec.layers), 2, heads, self._per_grain, self._block_size, row)

    def _scatter(self, blocks: Sequence[tuple[int, int, int]], payloads: Mapping[tuple[int, int], Bytes]) -> None:
        places: dict[tuple[int, int], list[tuple[int, int]]] = {}  # (grain, group) -> (place in the grain, block)
        for group, position, block in blocks:
            grain, place = divmod(position, self._per_grain)
            places.setdefault((grain, group), []).append((place, block))
        for spec in self._specs:
            for (grain, group), pairs in places.items():
                layers = [i for i, layer in enumerate(spec.layers) if self._layers[layer].group == group]
                if layers:
                    self._scatter_record(spec, layers, pairs, payloads[grain, int(spec.kind)])

    def _scatter_record(
        self, spec: RecordSpec, layers: Sequence[int], pairs: Sequence[tuple[int, int]], payload: Bytes
    ) -> None:
        record = self._as_blocks(payload, spec)
        for i in layers:
            k, v = self._pool[spec.layers[i]]
            for place, block in pairs:
                k[block] = record[i, 0, :, place]
                v[block] = record[i, 1, :, place]


def _as_bytes(tensor: Tensor) -> Bytes:
    """(blocks, heads, block size, bytes of a row), the pool's own memory: NumPy copies small blocks in a fifth of the
    time that torch takes, and on one thread."""
    view: Bytes = tensor.view(torch.uint8).numpy()
    return view

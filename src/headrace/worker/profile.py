"""Profiling: how long a step of so many rows takes here, before there are requests. Writes nothing into the KV pool.

A model that keeps records writes wherever its block tables point; it is measured over a block of its own.
"""

from __future__ import annotations

import numpy as np
import torch

from headrace.contract.batch import PackedBatch
from headrace.contract.layout import RecordLayout

from .kv_tensors import allocate_kv
from .runner import Runner

SIZES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64)
# Tokens each row sees, so that attention counts for something. An odd number: a model that pools pairs of tokens then
# opens one, and asks for no half that an earlier token would have left.
DEPTH = 127


def measured_runner(runner: Runner, block_size: int) -> Runner:
    """The runner to profile in place of ``runner``: itself, or for a model of records one over scratch memory."""
    layout = runner.model.kv_layout
    if not isinstance(layout, RecordLayout):
        return runner
    return Runner(runner.model, runner.ops, allocate_kv(layout, 1, block_size))


def run_rows(runner: Runner, size: int, block_size: int) -> None:
    """One decode step of ``size`` sequences. All of them read the null block; their slots are padding."""
    num_groups = len(runner.model.kv_layout.groups)
    depth = min(DEPTH, runner.model.max_positions)
    batch = PackedBatch.empty(size, size, size, num_groups, -(-depth // block_size))
    batch.input_ids[:] = 0
    batch.positions[:] = depth - 1
    batch.request_index[:] = batch.logits_indices[:] = np.arange(size)
    batch.query_start_loc[:] = np.arange(size + 1)
    batch.seq_lens[:] = depth
    batch.discard[:] = 0
    batch.prev_positions[:] = -1
    batch.block_tables[:] = 0
    batch.slots[:] = -1
    with torch.inference_mode():
        runner.forward(batch, runner.context(batch), torch.from_numpy(batch.logits_indices))


def profiled_sizes(most: int) -> list[int]:
    """Numbers of rows to measure, ``most`` at most. Beyond the last of them no draft is worth its row: a step that
    large is bound by arithmetic, and every row costs what it costs."""
    return [size for size in SIZES if size <= most]

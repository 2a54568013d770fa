"""What a model costs at least on this machine: bytes per decode step, operations per prompt token.

The classic roofline: a decode step must read the weights and its KV once, a prefill must do its multiply-adds.

The bytes counted are those of the model's file: an engine that unpacks weights to wider numbers reads more, and its
share of the limit shows it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from mmap import ACCESS_READ, mmap
from pathlib import Path

from headrace.contract.errors import ModelError
from headrace.models.weights.gguf_header import TensorInfo, read_header

from .roofline import Peaks
from .workload import Batch

HEADS = ("output.weight", "token_embd.weight")  # a model without the first uses the second for both


@dataclass(frozen=True, slots=True)
class ModelCost:
    """``weight_bytes`` are read once per step, head included; ``prompt_macs`` is the multiply-adds per prompt token,
    head and attention left out; ``kv_bytes`` are read per token of context and step."""

    weight_bytes: int
    prompt_macs: int
    kv_bytes: float

    def step_seconds(self, peaks: Peaks, rows: int, context: int) -> float:
        """The least time of a decode step of ``rows`` sequences of ``context`` tokens each."""
        read = (self.weight_bytes + rows * context * self.kv_bytes) / peaks.read_bytes.median
        return max(read, 2 * rows * self.prompt_macs / peaks.byte_ops.median)

    def prefill_rate(self, peaks: Peaks, in_floats: bool) -> float:
        """The most prompt tokens per second, in float32 or with byte products."""
        peak = peaks.float_ops if in_floats else peaks.byte_ops
        return peak.median / (2 * self.prompt_macs)

    def batch_rate(self, peaks: Peaks, batch: Batch, in_floats: bool) -> float:
        """The most output tokens per second of a batch.

        Each prompt token once (a shared beginning once for all), then one step per further token with every sequence.
        """
        prompts = batch.count * batch.length + batch.shared
        context = batch.shared + batch.length + batch.max_tokens // 2
        steps = (batch.max_tokens - 1) * self.step_seconds(peaks, batch.count, context)
        return batch.num_output / (prompts / self.prefill_rate(peaks, in_floats) + steps)


def model_cost(file: Path, kv_bytes: float) -> ModelCost | None:
    """Read from the header of a GGUF file; None for anything else. Raises ModelError for a damaged file."""
    if file.suffix != ".gguf" or not file.is_file():
        return None
    with file.open("rb") as handle, mmap(handle.fileno(), 0, access=ACCESS_READ) as data:
        tensors = read_header(str(file), data).tensors
    head = next((tensors[name] for name in HEADS if name in tensors), None)
    if head is None:
        raise ModelError(f"{file}: {HEADS[1]}", "is missing")
    body = [info for name, info in tensors.items() if name not in HEADS and len(info.shape) == 2]
    return ModelCost(
        weight_bytes=head.num_bytes + sum(info.num_bytes for info in body),
        prompt_macs=sum(map(_size, body)),
        kv_bytes=kv_bytes,
    )


def _size(info: TensorInfo) -> int:
    return prod(info.shape)

"""KV blocks on their way between processes: a worker's ``read_blocks`` as frames of bytes, and back. Copies bits only.

Every frame has a checksum, and is one tensor whose type and shape are checked before anything is made of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace._core import crc32c
from headrace.contract.errors import WorkerError
from headrace.contract.handoff import Part

DTYPES = {str(t).removeprefix("torch."): t for t in (torch.float32, torch.bfloat16, torch.int16, torch.int8)}
DTYPES |= {"uint8": torch.uint8, "float16": torch.float16, "int32": torch.int32}


class TensorCodec:
    """A Codec over lists of tensors (blocks, ...)."""

    def pack(self, content: Sequence[Tensor]) -> tuple[list[Part], list[Any]]:
        parts, frames = [], []
        for tensor in content:
            raw = tensor.contiguous().view(torch.uint8).numpy().reshape(-1)
            parts.append(Part(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), int(crc32c(raw))))
            frames.append(raw.data)
        return parts, frames

    def unpack(self, parts: Sequence[Part], frames: Sequence[Any]) -> list[Tensor]:
        """Raises WorkerError for frames that are not what the parts say."""
        if len(parts) != len(frames):
            raise WorkerError(f"{len(frames)} frames where {len(parts)} are due")
        return [_tensor(part, frame) for part, frame in zip(parts, frames)]

    def arrange(self, contents: Sequence[Sequence[Tensor]], rows: Sequence[tuple[int, int]]) -> list[Tensor]:
        starts = np.cumsum([0, *(len(content[0]) for content in contents)])
        for i, row in rows:
            if row >= len(contents[i][0]):
                raise WorkerError("a piece holds fewer blocks than it says")
        index = torch.tensor([int(starts[i]) + row for i, row in rows], dtype=torch.int64)
        return [torch.cat(tensors)[index] for tensors in zip(*contents, strict=True)]


def _tensor(part: Part, frame: Any) -> Tensor:
    dtype = DTYPES.get(part.dtype)
    if dtype is None or not part.shape or min(part.shape) < 0:
        raise WorkerError(f"no tensor is {part.dtype} {part.shape}")
    if len(frame) != math.prod(part.shape) * dtype.itemsize:
        raise WorkerError(f"{len(frame)} bytes for {part.dtype} {part.shape}")
    raw = np.frombuffer(frame, np.uint8).copy()
    if int(crc32c(raw)) != part.crc:
        raise WorkerError("damaged on its way")
    return torch.from_numpy(raw).view(dtype).view(part.shape)

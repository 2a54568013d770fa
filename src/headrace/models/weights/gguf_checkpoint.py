"""A GGUF file as a checkpoint: maps the file and dequantises one tensor at a time.

``gguf`` (the format's own package) knows the block formats. What differs from the Hugging Face layout is put
right here: names, the interleaved rows of q and k, and the ``+ 1`` folded into Gemma's norm weights.
"""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from gguf.quants import dequantize
from torch import Tensor

from headrace.contract.errors import ModelError

from .checkpoint import Shapes, check_shapes
from .gguf_config import ROPE_FACTORS, GGUFFamily, config_from_metadata, family_of
from .gguf_header import GGUFHeader, TensorInfo, read_header
from .gguf_names import hf_name

SUPPORTED = frozenset(
    {Kind.F32, Kind.F16, Kind.BF16, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q8_0}
    | {Kind.Q4_K, Kind.Q5_K, Kind.Q6_K}
)
# Dequantising makes several float temporaries; slabs keep them small beside the result.
SLAB_ELEMENTS = 1 << 22
MAX_ROPE_FACTORS = 1 << 14


class GGUFCheckpoint:
    """A checkpoint in one ``.gguf`` file. See ``Checkpoint``. ``metadata`` is the file's own, unchanged."""

    def __init__(self, path: Path) -> None:
        self.source = str(path)
        self._data = _map(path)
        header = read_header(self.source, self._data)
        self.metadata = header.metadata
        self._family = family_of(self.source, header.metadata)
        self._infos = _rename(self.source, header, self._family)
        self.config = config_from_metadata(self.source, header, self._family, self._rope_factors(header))

    def names(self) -> tuple[str, ...]:
        return tuple(self._infos)

    def expect(self, shapes: Shapes) -> None:
        check_shapes(self.source, {name: info.shape for name, info in self._infos.items()}, shapes)

    def tensor(self, name: str) -> Tensor:
        if name not in self._infos:
            raise ModelError(f"{self.source}: {name}", "no such tensor")
        values = torch.from_numpy(self._dequantize(self._infos[name]))
        if self._family.interleaved_qk and ".self_attn." in name:
            return self._deinterleave(name, values)
        if self._family.norm_offset and name.endswith("norm.weight"):
            return values.sub_(self._family.norm_offset)
        return values

    def _rope_factors(self, header: GGUFHeader) -> list[float] | None:
        info = header.tensors.get(ROPE_FACTORS)
        if info is None:
            return None
        if len(info.shape) != 1 or info.shape[0] > MAX_ROPE_FACTORS:
            raise ModelError(
                f"{self.source}: {ROPE_FACTORS}", f"has shape {info.shape}, one short row expected"
            )
        return [float(factor) for factor in self._dequantize(info)]

    def _dequantize(self, info: TensorInfo) -> np.ndarray:
        """Float32 copy of one stored tensor, slab by slab of rows."""
        num_rows = int(np.prod(info.shape[:-1], dtype=np.int64))
        raw = np.frombuffer(self._data, np.uint8, info.num_bytes, info.offset).reshape(num_rows, -1)
        out = np.empty((num_rows, info.shape[-1]), np.float32)
        step = max(1, SLAB_ELEMENTS // info.shape[-1])
        for row in range(0, num_rows, step):
            out[row : row + step] = dequantize(raw[row : row + step], info.kind)
        return out.reshape(info.shape)

    def _deinterleave(self, name: str, values: Tensor) -> Tensor:
        heads_key = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}.get(
            name.split(".")[-2]
        )
        if heads_key is None:
            return values
        num_heads = self.config[heads_key]
        if num_heads <= 0 or len(values) % (2 * num_heads):
            raise ModelError(
                f"{self.source}: {name}", f"{len(values)} rows do not make {num_heads} rotary heads"
            )
        return deinterleave_rows(values, num_heads)


def deinterleave_rows(values: Tensor, num_heads: int) -> Tensor:
    """Rows of each head from rotary pairs (2i, 2i+1) to halves (i, i + D/2). values (num_heads * D, ...)."""
    pairs = values.reshape(num_heads, -1, 2, *values.shape[1:])  # (num_heads, D/2, 2, ...)
    return pairs.transpose(1, 2).reshape(values.shape).contiguous()


def _map(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
        raise ModelError(str(path), f"cannot be mapped: {error}") from error


def _rename(source: str, header: GGUFHeader, family: GGUFFamily) -> dict[str, TensorInfo]:
    """Directory under Hugging Face names. Unknown names and block formats are refused now, not when read."""
    infos: dict[str, TensorInfo] = {}
    for info in header.tensors.values():
        if info.kind not in SUPPORTED:
            known = sorted(kind.name for kind in SUPPORTED)
            raise ModelError(f"{source}: {info.name}", f"is stored as {info.kind.name}; known: {known}")
        if info.name != ROPE_FACTORS:
            infos[hf_name(source, info.name, family.norm_names)] = info
    return infos

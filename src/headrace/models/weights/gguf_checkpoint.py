"""A GGUF file as a checkpoint: maps the file; reads one tensor at a time, as stored or as float32.

What differs from the Hugging Face layout is put right here: names, the interleaved rows of q and k, and the
``+ 1`` folded into Gemma's norm weights.
"""

from __future__ import annotations

import mmap
import warnings
from math import prod
from pathlib import Path

import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from torch import Tensor

from headrace.contract.errors import ModelError
from headrace.contract.files import require_regular
from headrace.kernels.quant import KINDS, QuantRows, packed_bytes

from .checkpoint import Shapes, check_shapes
from .gguf_config import ROPE_FACTORS, GGUFFamily, config_from_metadata, family_of
from .gguf_header import GGUFHeader, TensorInfo, read_header
from .gguf_names import hf_name

FLOATS = {Kind.F32: torch.float32, Kind.F16: torch.float16, Kind.BF16: torch.bfloat16}
SUPPORTED = frozenset(FLOATS) | {Kind[name] for name in KINDS}
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
        stored = self.stored(name)
        if isinstance(stored, QuantRows):
            return stored.dequantise().reshape(self._infos[name].shape)
        # ``copy``: a float32 tensor would otherwise stay a view of the mapped file.
        return stored.to(torch.float32, copy=True)

    def stored(self, name: str) -> Tensor | QuantRows:
        if name not in self._infos:
            raise ModelError(f"{self.source}: {name}", "no such tensor")
        stored = self._read(self._infos[name])
        if self._family.interleaved_qk and ".self_attn." in name:
            return self._deinterleave(name, stored)
        if self._family.norm_offset and name.endswith("norm.weight") and isinstance(stored, Tensor):
            return stored.to(torch.float32) - self._family.norm_offset
        return stored

    def packed_bytes(self, name: str) -> int:
        info = self._infos[name]
        return info.num_bytes if info.kind in FLOATS else packed_bytes(info.kind.name, prod(info.shape))

    def _rope_factors(self, header: GGUFHeader) -> list[float] | None:
        info = header.tensors.get(ROPE_FACTORS)
        if info is None:
            return None
        if len(info.shape) != 1 or info.shape[0] > MAX_ROPE_FACTORS:
            raise ModelError(f"{self.source}: {ROPE_FACTORS}", f"has shape {info.shape}, one short row expected")
        if info.kind not in FLOATS:
            raise ModelError(f"{self.source}: {ROPE_FACTORS}", f"is stored as {info.kind.name}, floats expected")
        stored = self._read(info)
        assert isinstance(stored, Tensor)
        return [float(factor) for factor in stored]

    def _read(self, info: TensorInfo) -> Tensor | QuantRows:
        """A view of the mapped file."""
        raw = np.frombuffer(self._data, np.uint8, info.num_bytes, info.offset)
        if info.kind in FLOATS:
            with warnings.catch_warnings():  # the view is read-only, which torch cannot express
                warnings.simplefilter("ignore", UserWarning)
                return torch.from_numpy(raw).view(FLOATS[info.kind]).view(info.shape)
        num_rows = int(np.prod(info.shape[:-1], dtype=np.int64))
        return QuantRows(info.kind.name, num_rows, info.shape[-1], raw.reshape(num_rows, -1))

    def _deinterleave(self, name: str, stored: Tensor | QuantRows) -> Tensor | QuantRows:
        heads_key = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}.get(name.split(".")[-2])
        if heads_key is None:
            return stored
        num_heads, num_rows = self.config[heads_key], self._infos[name].shape[0]
        if num_heads <= 0 or num_rows % (2 * num_heads):
            raise ModelError(f"{self.source}: {name}", f"{num_rows} rows do not make {num_heads} rotary heads")
        order = deinterleaved_rows(num_rows, num_heads)
        return stored.rows(order) if isinstance(stored, QuantRows) else stored[torch.from_numpy(order)]


def deinterleaved_rows(num_rows: int, num_heads: int) -> np.ndarray:
    """Order of rows that takes each head from rotary pairs (2i, 2i+1) to halves (i, i + D/2)."""
    pairs = np.arange(num_rows).reshape(num_heads, -1, 2)  # (num_heads, D/2, 2)
    return pairs.transpose(0, 2, 1).reshape(-1)


def _map(path: Path) -> mmap.mmap:
    try:
        require_regular(path)
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

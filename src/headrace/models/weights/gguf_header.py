"""The header of a GGUF file (versions 2 and 3, little-endian): metadata and the tensor directory.

Written for hostile files: every count and length is held against the bytes that are left and against a
fixed limit before anything is allocated or looped over. Tensor data are only bounds-checked, never read.
The format is described in the ``docs/gguf.md`` of the ggml project.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import prod
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from headrace.contract.errors import ModelError
from headrace.contract.files import require_regular

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_TENSORS = 1 << 17
MAX_KEYS = 1 << 14
MAX_ARRAY = 1 << 24
MAX_STRING_BYTES = 1 << 24
MAX_DIMS = 4
STRING, ARRAY = 8, 9
# GGUF value type -> numpy's little-endian code.
SCALARS = {
    **{0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 10: "<u8", 11: "<i8"},
    **{6: "<f4", 12: "<f8", 7: "?"},
}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where one tensor lies. ``shape`` is row-major (the file stores it reversed); ``offset`` is absolute."""

    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class GGUFHeader:
    """Everything in front of the data."""

    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]


def read_header(file: str, data: mmap | bytes) -> GGUFHeader:
    """Parse and check the header of ``data``; ``file`` is for messages. Errors: ModelError."""
    cursor = _Cursor(file, data)
    num_tensors, num_keys = _read_counts(cursor)
    metadata = _read_metadata(cursor, num_keys)
    entries = [_read_entry(cursor) for _ in range(num_tensors)]
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
        raise ModelError(f"{file}: general.alignment", f"{alignment!r} is not a power of two")
    start = -(-cursor.at // alignment) * alignment
    return GGUFHeader(metadata, _place(file, entries, start, len(data)))


def read_metadata(path: Path) -> dict[str, Any]:
    """The key-value pairs of a file, tensors unread and unchecked; arrays become lists. Errors: ModelError."""
    try:
        require_regular(path)
        if path.stat().st_size == 0:  # it cannot be mapped
            raise ModelError(str(path), "is empty")
        with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
            cursor = _Cursor(str(path), data)
            _, num_keys = _read_counts(cursor)
            return _read_metadata(cursor, num_keys)
    except (OSError, ValueError) as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(str(path), f"cannot be read: {error}") from error


def _read_counts(cursor: _Cursor) -> tuple[int, int]:
    """Magic, version, then the numbers of tensors and of metadata keys."""
    if cursor.take(4) != MAGIC:
        raise ModelError(cursor.file, "is not a GGUF file (wrong magic)")
    version = cursor.u32()
    if version not in VERSIONS:
        raise ModelError(cursor.file, f"GGUF version {version} is not supported; known: {VERSIONS} (little-endian)")
    num_tensors = cursor.count("tensor count", min_bytes=24, limit=MAX_TENSORS)
    return num_tensors, cursor.count("metadata count", min_bytes=13, limit=MAX_KEYS)


class _Cursor:
    """A read position that cannot leave the data."""

    def __init__(self, file: str, data: mmap | bytes) -> None:
        self.file, self.data, self.at, self.key = file, data, 0, "header"

    def take(self, num_bytes: int) -> bytes:
        end = self.at + num_bytes
        if end > len(self.data):
            raise ModelError(f"{self.file}: {self.key}", f"file ends at byte {len(self.data)}, {end} needed")
        piece = self.data[self.at : end]
        self.at = end
        return piece

    def u32(self) -> int:
        return int(struct.unpack("<I", self.take(4))[0])

    def u64(self) -> int:
        return int(struct.unpack("<Q", self.take(8))[0])

    def count(self, what: str, *, min_bytes: int, limit: int) -> int:
        """A stored count of things of at least ``min_bytes`` each."""
        number = self.u64()
        if number > limit or number * min_bytes > len(self.data) - self.at:
            raise ModelError(f"{self.file}: {self.key}", f"{what} {number} cannot be true of this file")
        return number

    def string(self) -> str:
        raw = self.take(self.count("string length", min_bytes=1, limit=MAX_STRING_BYTES))
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise ModelError(f"{self.file}: {self.key}", "holds a string that is not UTF-8") from error

    def value(self, kind: int) -> Any:
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            return self.array()
        dtype = self.scalar_type(kind)
        return np.frombuffer(self.take(dtype.itemsize), dtype)[0].item()

    def array(self) -> list[Any]:
        kind = self.u32()
        if kind == STRING:
            return self.strings(self.count("array length", min_bytes=8, limit=MAX_ARRAY))
        dtype = self.scalar_type(kind)
        number = self.count("array length", min_bytes=dtype.itemsize, limit=MAX_ARRAY)
        return list(np.frombuffer(self.take(number * dtype.itemsize), dtype).tolist())

    def strings(self, number: int) -> list[str]:
        """The hot loop: kept free of calls into this class because vocabularies have 10^5 entries."""
        data, at, size = self.data, self.at, len(self.data)
        unpack = struct.Struct("<Q").unpack_from
        result = []
        for _ in range(number):
            end = at + 8 + unpack(data, at)[0] if at + 8 <= size else size + 1
            if end > size:
                raise ModelError(f"{self.file}: {self.key}", "a string array is cut short")
            result.append(data[at + 8 : end].decode("utf-8", "replace"))
            at = end
        self.at = at
        return result

    def scalar_type(self, kind: int) -> np.dtype[Any]:
        if kind not in SCALARS:
            raise ModelError(f"{self.file}: {self.key}", f"value type {kind} is unknown, or an array in an array")
        return np.dtype(SCALARS[kind])


def _read_metadata(cursor: _Cursor, num_keys: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for _ in range(num_keys):
        cursor.key = "metadata"
        key = cursor.string()
        if key in metadata:
            raise ModelError(f"{cursor.file}: {key}", "appears twice")
        cursor.key = key
        metadata[key] = cursor.value(cursor.u32())
    return metadata


def _read_entry(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    """One directory entry: name, row-major shape, type number, offset from the start of the data."""
    cursor.key = "tensor directory"
    name = cursor.string()
    cursor.key = name
    num_dims = cursor.u32()
    if not 1 <= num_dims <= MAX_DIMS:
        raise ModelError(f"{cursor.file}: {name}", f"has {num_dims} dimensions; 1 to {MAX_DIMS} are possible")
    shape = tuple(cursor.u64() for _ in range(num_dims))[::-1]
    return name, shape, cursor.u32(), cursor.u64()


def _place(
    file: str, entries: list[tuple[str, tuple[int, ...], int, int]], start: int, size: int
) -> dict[str, TensorInfo]:
    tensors: dict[str, TensorInfo] = {}
    for name, shape, number, offset in entries:
        if name in tensors:
            raise ModelError(f"{file}: {name}", "appears twice")
        kind, num_bytes = _extent(f"{file}: {name}", shape, number)
        if start + offset + num_bytes > size:
            message = f"needs bytes up to {start + offset + num_bytes}, the file ends at {size}: truncated?"
            raise ModelError(f"{file}: {name}", message)
        tensors[name] = TensorInfo(name, shape, kind, start + offset, num_bytes)
    return tensors


def _extent(where: str, shape: tuple[int, ...], number: int) -> tuple[GGMLQuantizationType, int]:
    """The type and stored size of a tensor. Python's integers cannot overflow, whatever the file says."""
    try:
        kind = GGMLQuantizationType(number)
    except ValueError as error:
        raise ModelError(where, f"tensor type {number} is unknown") from error
    block, block_bytes = GGML_QUANT_SIZES[kind]
    if prod(shape) == 0 or shape[-1] % block:
        raise ModelError(where, f"shape {shape} does not fit blocks of {block} ({kind.name})")
    return kind, prod(shape) // block * block_bytes

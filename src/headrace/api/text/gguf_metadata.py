"""Key-value header of a GGUF file, read without touching the tensors.

A tokenizer may sit in half a million small strings, so this reader walks the mapped file once and builds
plain lists. It trusts no count or length in the file: each one is checked against the bytes that are there.
Format: GGUF versions 2 and 3, little-endian.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any

import numpy as np

from ...contract.errors import ModelError

STRING, ARRAY = 8, 9
SCALARS = {0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "<u1"}
SCALARS |= {10: "<u8", 11: "<i8", 12: "<f8"}
BOOL = 7


def read_gguf_metadata(path: Path) -> dict[str, Any]:
    """All key-value pairs of the file at ``path``; arrays become lists. Raises ModelError on a damaged
    file.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Cursor(data, path).pairs()
    except (OSError, ValueError) as error:  # mmap refuses an empty file with ValueError
        raise ModelError(str(path), f"cannot be read: {error}") from error


class _Cursor:
    """A read position in the mapped file."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self.data, self.path, self.pos = data, path, 0

    def fail(self, message: str) -> ModelError:
        return ModelError(str(self.path), f"{message} at byte {self.pos}")

    def take(self, num_bytes: int) -> bytes:
        start = self.pos
        if num_bytes > len(self.data) - start:
            raise self.fail(f"header is cut short: {num_bytes} bytes wanted")
        self.pos = start + num_bytes
        return self.data[start : self.pos]

    def number(self, layout: str) -> int:
        value: int = struct.unpack(layout, self.take(struct.calcsize(layout)))[0]
        return value

    def pairs(self) -> dict[str, Any]:
        if self.take(4) != b"GGUF":
            raise ModelError(str(self.path), "is not a GGUF file (no GGUF magic)")
        version = self.number("<I")
        if version not in (2, 3):
            raise ModelError(str(self.path), f"GGUF version {version} is not supported (2 and 3 are)")
        self.number("<Q")  # tensor count
        result = {}
        for _ in range(self.number("<Q")):
            key = self.string()
            result[key] = self.value(self.number("<I"))
        return result

    def string(self) -> str:
        return self.take(self.number("<Q")).decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            return self.array(self.number("<I"), self.number("<Q"))
        return self.scalars(kind, 1)[0]

    def array(self, kind: int, count: int) -> list[Any]:
        if kind == STRING:
            return self.strings(count)
        if kind == ARRAY:
            raise self.fail("nested arrays are not supported")
        return self.scalars(kind, count)

    def scalars(self, kind: int, count: int) -> list[Any]:
        if kind not in SCALARS:
            raise self.fail(f"unknown value type {kind}")
        dtype = np.dtype(SCALARS[kind])
        values = np.frombuffer(self.take(count * dtype.itemsize), dtype)
        return list((values != 0).tolist() if kind == BOOL else values.tolist())

    def strings(self, count: int) -> list[str]:
        """The hot loop: kept free of calls into this class because vocabularies have 10^5 entries."""
        data, pos, size = self.data, self.pos, len(self.data)
        unpack = struct.Struct("<Q").unpack_from
        if count > (size - pos) // 8:
            raise self.fail(f"array of {count} strings does not fit the file")
        result = []
        for _ in range(count):
            if pos + 8 > size:
                raise self.fail("string array is cut short")
            end = pos + 8 + unpack(data, pos)[0]
            if end > size:
                raise self.fail("string array is cut short")
            result.append(data[pos + 8 : end].decode("utf-8", "replace"))
            pos = end
        self.pos = pos
        return result

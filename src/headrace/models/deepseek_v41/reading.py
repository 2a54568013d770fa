"""Reads the tensors of a V4.1 checkpoint: prefix rule, storage checks, exact dequantisation. Knows no layer.

Everything is checked on headers before the first weight is read. Matrices come out in bfloat16 where that is exact
(4- and 8-bit codes times powers of two are), else in float32; Engram tables stay where they are, in the mapped file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from headrace.contract.errors import ModelError

from . import quantise
from .tensor_table import FP4, Stored, Table

PREFIX = "model."
OPTIONAL_SUFFIX = "ffn.gate.bias_vl"
# Heads and embeddings of draft layers are the backbone's own: copies in a file are passed over.
TIED = re.compile(r"mtp\.\d+\.(embed|head)\.weight")
NOT_A_NUMBER = 255  # as a scale byte
ROWS_AT_ONCE = 1 << 12  # that are looked at, so that no large matrix is in memory twice


class RawCheckpoint(Protocol):
    """What this family needs of a checkpoint: tensors as stored, 8-bit types included."""

    source: str

    def names(self) -> tuple[str, ...]: ...

    def stored_as(self, name: str) -> tuple[str, tuple[int, ...]]:
        """Storage type and shape, from the header."""
        ...

    def where(self, name: str, /) -> str:
        """Its file, for errors."""
        ...

    def raw(self, name: str) -> Tensor:
        """The tensor in the file's own type; may be a view of the mapped file."""
        ...


class TensorReader:
    """Tensors by the names of ``tensor_table``, whatever prefix the file uses."""

    def __init__(self, checkpoint: RawCheckpoint, table: Table) -> None:
        """Errors: ModelError naming the tensor that is missing, doubled, misshapen, misstored or has no place."""
        self.source = checkpoint.source
        self._checkpoint, self._table = checkpoint, table
        self._names = _strip_prefix(checkpoint)
        _check_coverage(checkpoint, self._names, table)
        for name in self._names.keys() & table.keys():
            self._check(name, table[name])

    def _check(self, name: str, expected: Stored) -> None:
        kind, shape = self._checkpoint.stored_as(self._names[name])
        at = f"{self.source}: {name}"
        if kind != expected.kind:
            raise ModelError(at, f"is stored as {kind}, this architecture has it in {expected.kind}")
        if shape != expected.shape:
            raise ModelError(at, f"has shape {shape}, the configuration says {expected.shape}")

    def has(self, name: str) -> bool:
        return name in self._names

    def floats(self, name: str) -> Tensor:
        """A float32 copy of a BF16 or F32 tensor. Errors: ModelError as ``plain``."""
        return self.plain(name).to(torch.float32, copy=True).contiguous()

    def plain(self, name: str) -> Tensor:
        """A BF16 or F32 tensor as it is stored, to be packed. Errors: ModelError for a value that is not finite."""
        return self._finite(name, self._checkpoint.raw(self._names[name]))

    def _finite(self, name: str, values: Tensor) -> Tensor:
        """Some such values would show in every answer, others (of a gate, of index keys) only make worse ones."""
        for part in values.split(ROWS_AT_ONCE):
            if not part.isfinite().all():
                raise ModelError(f"{self.source}: {name}", "holds a value that is not finite")
        return values

    def matrix(self, name: str) -> Tensor:
        """``name.weight`` (FP8 tiles or FP4 rows) times its scales, exactly. Errors: ModelError as ``plain``."""
        codes, scale = self.coded(name)
        kind = self._table[f"{name}.weight"].kind
        values = quantise.fp4_rows(codes, scale) if kind == FP4 else quantise.fp8_tiles(codes, scale)
        self._finite(f"{name}.weight", values)
        narrow = values.to(torch.bfloat16)
        return narrow if torch.equal(narrow.to(torch.float32), values) else values

    def coded(self, name: str) -> tuple[Tensor, Tensor]:
        """Bytes of ``name.weight`` and of ``name.scale``. Errors: ModelError for a scale that is no number."""
        codes, scale = self.mapped(name)
        if (scale == NOT_A_NUMBER).any():
            raise ModelError(f"{self.source}: {name}.scale", "holds a scale that is not a number")
        return codes, scale

    def mapped(self, name: str) -> tuple[Tensor, Tensor]:
        """The same, unread: views of the mapped file."""
        codes, scale = (self._checkpoint.raw(self._names[f"{name}.{part}"]) for part in ("weight", "scale"))
        return codes.view(torch.uint8), scale.view(torch.uint8)


def _strip_prefix(checkpoint: RawCheckpoint) -> dict[str, str]:
    """Plain name -> name in the file."""
    names: dict[str, str] = {}
    for stored in checkpoint.names():
        plain = stored.removeprefix(PREFIX)
        if plain in names:
            raise ModelError(f"{checkpoint.source}: {plain}", f"is there both with and without {PREFIX!r}")
        names[plain] = stored
    return names


def _check_coverage(checkpoint: RawCheckpoint, names: Mapping[str, str], table: Table) -> None:
    held = set(names)
    missing = [name for name in table if name not in held and not name.endswith(OPTIONAL_SUFFIX)]
    if missing:
        raise ModelError(checkpoint.source, f"{len(missing)} tensors are missing, first: {missing[0]}")
    extra = sorted(name for name in held if name not in table and not TIED.fullmatch(name))
    if extra:
        reason = (
            "its values belong into the mixing matrix" if re.search(r"hc_\w+_norm", extra[0]) else "it has no place"
        )
        raise ModelError(
            f"{checkpoint.where(names[extra[0]])}: {extra[0]}", f"is one of {len(extra)} surplus tensors: {reason}"
        )

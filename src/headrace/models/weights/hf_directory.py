"""A Hugging Face directory: ``config.json`` and ``*.safetensors``, with or without a shard index.

Files are mapped, not read; ``safetensors`` checks each header against the length of its file on opening.
Pickled weights (``.bin``) are never read: unpickling runs code.
"""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from headrace.contract.errors import ModelError
from headrace.contract.files import require_regular

from .checkpoint import Shapes, check_shapes
from .hf_config import WANTED, read_config, read_json_object

INDEX = "model.safetensors.index.json"
FLOATS = {"F32": 4, "F16": 2, "BF16": 2}  # bytes of one value


class HFDirectory:
    """A checkpoint in a directory. See ``Checkpoint``."""

    def __init__(self, path: Path) -> None:
        self.source = str(path)
        self.config = read_config(path)
        self._shards = {file: _open_shard(file) for file in _shard_files(path)}
        self._home = _locate(self._shards)
        self._indexed = (path / INDEX).exists()
        if self._indexed:
            _check_index(path / INDEX, self._home)

    @property
    def files(self) -> tuple[Path, ...]:
        """Those that hold the weights."""
        return tuple(self._shards)

    def names(self) -> tuple[str, ...]:
        return tuple(self._home)

    def expect(self, shapes: Shapes) -> None:
        stored = {name: tuple(self._slice(name).get_shape()) for name in self._home}
        check_shapes(self.source, stored, shapes, self.where)
        for name in shapes:
            self._check_float(name)

    def where(self, name: str) -> str:
        """The file that holds a tensor, for errors, and why it was read."""
        found = str(self._home[name])
        if len(self._shards) == 1 or self._indexed:
            return found
        return f"{found} (read, as all {len(self._shards)} *.safetensors are: {INDEX} is missing)"

    def tensor(self, name: str) -> Tensor:
        # ``copy``: a float32 tensor would otherwise stay a view of the mapped file.
        return self.stored(name).to(torch.float32, copy=True).contiguous()

    def stored(self, name: str) -> Tensor:
        if name not in self._home:
            raise ModelError(f"{self.source}: {name}", "no such tensor")
        self._check_float(name)
        stored: Tensor = self._shards[self._home[name]].get_tensor(name)
        return stored

    def stored_as(self, name: str) -> tuple[str, tuple[int, ...]]:
        """Storage type, in the format's word, and shape of a tensor: of any type, 8-bit ones included."""
        stored = self._slice(name)
        return stored.get_dtype(), tuple(stored.get_shape())

    def raw(self, name: str) -> Tensor:
        """A tensor in the file's own type, whatever that is. A view of the mapped file: never changed."""
        tensor: Tensor = self._shards[self._home[name]].get_tensor(name)
        return tensor

    def packed_bytes(self, name: str) -> int:
        stored = self._slice(name)
        return int(prod(stored.get_shape())) * FLOATS[stored.get_dtype()]

    def _slice(self, name: str) -> Any:
        return self._shards[self._home[name]].get_slice(name)

    def _check_float(self, name: str) -> None:
        kind = self._slice(name).get_dtype()
        if kind not in FLOATS:
            raise ModelError(f"{self._home[name]}: {name}", f"is stored as {kind}; known: {sorted(FLOATS)}")


def _shard_files(path: Path) -> list[Path]:
    """The weight files: those the index names, else every ``*.safetensors`` in the directory."""
    index = path / INDEX
    if index.exists():
        return [path / _plain_name(index, name) for name in sorted(set(_weight_map(index).values()))]
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise ModelError(str(path), f"holds no *.safetensors file: {WANTED}")
    return files


def _weight_map(index: Path) -> dict[str, str]:
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(v, str) for v in weight_map.values()):
        raise ModelError(f"{index}: weight_map", "must be an object of tensor name to file name")
    return weight_map


def _plain_name(index: Path, name: str) -> str:
    """Refuse names that lead out of the directory: an index may come from a stranger."""
    if not name or Path(name).name != name or "\\" in name:
        raise ModelError(f"{index}: weight_map", f"{name!r} is not a plain file name")
    return name


def _open_shard(file: Path) -> Any:
    if not file.exists():
        raise ModelError(str(file), "is named by the index but does not exist")
    try:
        require_regular(file)
        return safe_open(str(file), framework="pt")
    except (SafetensorError, OSError, ValueError) as error:
        raise ModelError(str(file), f"is not a whole safetensors file: {error}") from error


def _locate(shards: dict[Path, Any]) -> dict[str, Path]:
    home: dict[str, Path] = {}
    for file, shard in shards.items():
        for name in shard.keys():  # noqa: SIM118 (not a mapping)
            if name in home:
                raise ModelError(f"{file}: {name}", f"is also in {home[name].name}")
            home[name] = file
    return home


def _check_index(index: Path, home: dict[str, Path]) -> None:
    for name, file in _weight_map(index).items():
        if name not in home or home[name].name != file:
            raise ModelError(f"{index}: {name}", f"is not in {file}")

"""Which baseline a run belongs to: model, platform (backend, instruction set), mode (dtype, KV dtype, deterministic).

Bits are promised within a key only. Not in the key, but kept beside it: a digest of the weights, so that other weights
are told from other arithmetic.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import msgspec

from headrace.api.launch import DUMMY_SEED
from headrace.config import EngineConfig, kv_format
from headrace.models.sources import ModelSource

CHUNK = 1 << 20
PROBE = (64, 64)  # of a dummy tensor: torch draws them, and not every processor's torch draws alike


class Key(msgspec.Struct, frozen=True):
    """One baseline file each."""

    model: str
    backend: str
    isa: str
    dtype: str
    kv_dtype: str
    deterministic: bool

    @property
    def file(self) -> Path:
        """Relative, fit for any disk: ``model/cpu-avx512-auto-int16-deterministic.json``."""
        mode = "deterministic" if self.deterministic else "free"
        name = "-".join((self.backend, self.isa, self.dtype, self.kv_dtype, mode))
        return Path(re.sub(r"[^\w.-]+", "_", self.model).strip(".") or "model") / f"{name}.json"

    @property
    def words(self) -> str:
        mode = "deterministic" if self.deterministic else "free"
        return f"{self.model} on {self.backend} {self.isa}, dtype {self.dtype}, KV {self.kv_dtype}, {mode}"


def model_name(source: ModelSource) -> str:
    """The name without the place: a listed or hub name as it is, of anything on this disk the last part."""
    if source.dummy or ("/" in source.name and not source.name.startswith(("hf:", "pypi:"))):
        return source.path.stem if source.path.is_file() else source.path.name
    return source.name


def key_of(config: EngineConfig, model: str, isa: str) -> Key:
    """``isa``: the kernels' instruction set in use; the reference backend has none."""
    cpu = config.model.backend == "cpu"
    return Key(
        model=model,
        backend=config.model.backend,
        isa=isa if cpu else "any",
        dtype=config.model.dtype,
        kv_dtype=kv_format(config),
        deterministic=config.runtime.deterministic,
    )


def weights_digest(source: ModelSource) -> str:
    """sha256 (16 hex digits) over the bytes that decide the weights. Raises OSError."""
    digest = hashlib.sha256()
    for path in _files(source):
        digest.update(f"{path.name}\0".encode())
        with path.open("rb") as file:
            while chunk := file.read(CHUNK):
                digest.update(chunk)
    if source.dummy:
        from headrace.models.weights.dummy import dummy_tensor

        digest.update(dummy_tensor(DUMMY_SEED, "golden.weight", PROBE).numpy().tobytes())
    return digest.hexdigest()[:16]


def _files(source: ModelSource) -> list[Path]:
    if source.path.is_file():
        return [source.path]
    return sorted([*source.path.glob("*.safetensors"), *source.path.glob("config.json")])

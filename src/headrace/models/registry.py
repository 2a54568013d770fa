"""Architectures by name. The table is all there is to it: no discovery, no plug-ins, no state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.contract.errors import ModelError
from headrace.kernels.ops import Ops

from .context import Model
from .dense.assembly import Progress, dense_bytes, load_dense
from .dense.families import FAMILIES as DENSE
from .weights.checkpoint import Checkpoint

# (architecture, checkpoint, ops, progress, exact) -> model
Loader = Callable[[str, Checkpoint, Ops, Progress | None, bool], Model]

LOADERS: dict[str, Loader] = dict.fromkeys(DENSE, load_dense)
# (architecture, checkpoint, exact) -> bytes
SIZERS: dict[str, Callable[[str, Checkpoint, bool], int]] = dict.fromkeys(DENSE, dense_bytes)
GIB = 1 << 30


def architectures() -> tuple[str, ...]:
    """Names that ``load_model`` knows, as ``config.json`` spells them under ``architectures``."""
    return tuple(sorted(LOADERS))


def load_model(checkpoint: Checkpoint, ops: Ops, *, progress: Progress | None = None, exact: bool = False) -> Model:
    """Read and pack all weights. ``progress(done, total)`` counts tensors.

    Matrices keep the storage they have, which for blocks means integer arithmetic where the backend has it;
    with ``exact`` they become float32, and so does all arithmetic.

    Errors: ModelError for an unknown architecture, a missing or misshapen tensor or an unreadable file;
    ConfigError for a setting the architecture does not support. Both before weights are read, where possible.
    """
    architecture = _architecture(checkpoint)
    return LOADERS[architecture](architecture, checkpoint, ops, progress, exact)


def require_memory(checkpoint: Checkpoint, free_bytes: int, *, exact: bool = False) -> None:
    """Before anything is read: ModelError when the model cannot fit in ``free_bytes``. Other errors: as ``load_model``.

    A machine that runs out of memory gives no error; it stalls, and then kills some process.
    """
    architecture = _architecture(checkpoint)
    needed = SIZERS[architecture](architecture, checkpoint, exact)
    if needed > free_bytes:
        sizes = f"need {needed / GIB:.2f} GiB of memory, {free_bytes / GIB:.2f} GiB are free"
        raise ModelError(checkpoint.source, f"its weights and position tables {sizes}")


def _architecture(checkpoint: Checkpoint) -> str:
    listed: Any = checkpoint.config.get("architectures")
    if not isinstance(listed, list) or len(listed) != 1 or listed[0] not in architectures():
        if listed == ["BertModel"]:
            raise ModelError(f"{checkpoint.source}: architectures", "is an encoder: for embeddings, not to generate")
        known = ", ".join(architectures())
        raise ModelError(f"{checkpoint.source}: architectures", f"{listed!r} is unknown; known: {known}")
    return str(listed[0])

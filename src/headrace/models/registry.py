"""Architectures by name. The table is all there is to it: no discovery, no plug-ins, no state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.contract.errors import ConfigError, ModelError
from headrace.kernels.ops import Ops
from headrace.parallel.eplb.balancer import ExpertShare
from headrace.parallel.tensor import TensorShare

from .context import HasEyes, Model
from .deepseek_v41.assembly import TokenMap, load_tower, load_v41, v41_bytes
from .deepseek_v41.config import ARCHITECTURE as V41
from .dense.assembly import Progress, dense_bytes, load_dense
from .dense.families import FAMILIES as DENSE
from .weights.checkpoint import Checkpoint


def _load_dense(
    architecture: str,
    checkpoint: Checkpoint,
    ops: Ops,
    progress: Progress | None,
    exact: bool,
    _: TokenMap | None,
    share: Share | None,
) -> Model:
    if isinstance(share, ExpertShare):
        raise ConfigError("expert_parallel", f"{architecture} has no experts that ranks could share")
    return load_dense(architecture, checkpoint, ops, progress, exact, share)


def _load_v41(
    _: str,
    checkpoint: Checkpoint,
    ops: Ops,
    progress: Progress | None,
    exact: bool,
    token_map: TokenMap | None,
    share: Share | None,
) -> Model:
    if isinstance(share, TensorShare):
        raise ConfigError("tensor_parallel_size", f"{V41} is spread by its experts: expert_parallel")
    return load_v41(checkpoint, ops, progress, _mode(exact), token_map, share)


def _dense_bytes(architecture: str, checkpoint: Checkpoint, exact: bool, _: Share | None) -> int:
    return dense_bytes(architecture, checkpoint, exact)


def _v41_bytes(_: str, checkpoint: Checkpoint, __: bool, share: Share | None) -> int:
    return v41_bytes(checkpoint, share if isinstance(share, ExpertShare) else None)


Share = ExpertShare | TensorShare
"""A rank's part of a model."""
# (architecture, checkpoint, ops, progress, exact, token map, share of the experts) -> model
Loader = Callable[[str, Checkpoint, Ops, Progress | None, bool, TokenMap | None, Share | None], Model]
LOADERS: dict[str, Loader] = {**dict.fromkeys(DENSE, _load_dense), V41: _load_v41}
# (architecture, checkpoint, exact, share of the experts) -> bytes
Sizer = Callable[[str, Checkpoint, bool, Share | None], int]
SIZERS: dict[str, Sizer] = {**dict.fromkeys(DENSE, _dense_bytes), V41: _v41_bytes}
GIB = 1 << 30


def architectures() -> tuple[str, ...]:
    """Names that ``load_model`` knows, as ``config.json`` spells them under ``architectures``."""
    return tuple(sorted(LOADERS))


def architecture_of(checkpoint: Checkpoint) -> str:
    """Its name. Raises ModelError for an unknown one."""
    return _architecture(checkpoint)


def load_model(
    checkpoint: Checkpoint,
    ops: Ops,
    *,
    progress: Progress | None = None,
    exact: bool = False,
    token_map: TokenMap | None = None,
    share: Share | None = None,
) -> Model:
    """Read and pack all weights. ``progress(done, total)`` counts tensors, or layers. With ``share`` only one rank's
    part of the routed experts: the model must then be joined to its group before it runs.

    ``token_map`` gives what models with Engram hash instead of token ids; it is called only for those.

    Matrices keep the storage they have, which for blocks means integer arithmetic where the backend has it;
    with ``exact`` they become float32, and so does all arithmetic.

    Errors: ModelError for an unknown architecture, a missing or misshapen tensor or an unreadable file;
    ConfigError for a setting the architecture does not support. Both before weights are read, where possible.
    """
    architecture = _architecture(checkpoint)
    return LOADERS[architecture](architecture, checkpoint, ops, progress, exact, token_map, share)


def load_eyes(checkpoint: Checkpoint, ops: Ops, *, exact: bool = False) -> HasEyes:
    """What encodes a model's pictures, without the rest of it; ``exact`` as for ``load_model``, with the same bits.

    Errors: as ``load_model``, and ConfigError for an architecture that reads text only.
    """
    architecture = _architecture(checkpoint)
    if architecture != V41:
        raise ConfigError("encoder_process", f"{architecture} has no eyes: it reads text only")
    return load_tower(checkpoint, ops, _mode(exact))


def _mode(exact: bool) -> str:
    return "float32" if exact else "bfloat16"


def require_memory(checkpoint: Checkpoint, free_bytes: int, *, exact: bool = False, share: Share | None = None) -> None:
    """Before anything is read: ModelError when the model cannot fit in ``free_bytes``. Other errors: as ``load_model``.

    A machine that runs out of memory gives no error; it stalls, and then kills some process.
    """
    architecture = _architecture(checkpoint)
    needed = SIZERS[architecture](architecture, checkpoint, exact, share)
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

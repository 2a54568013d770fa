"""What a checkpoint is, whatever stores it. Says nothing about files and never reads one.

The one convention: tensors have the names, the row order and the value offsets of the Hugging Face layout
(``model.layers.0.self_attn.q_proj.weight``; rotary halves not interleaved; Gemma norm weights stored as
``w`` where the layer multiplies by ``1 + w``). Formats that differ are converted on reading.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from torch import Tensor

from headrace.contract.errors import ModelError
from headrace.kernels.quant import QuantRows

Shapes = Mapping[str, tuple[int, ...]]

# Buffers that old exports carry although they are functions of the configuration.
DERIVED_SUFFIXES = (".rotary_emb.inv_freq", ".self_attn.bias", ".self_attn.masked_bias", "embeddings.position_ids")


class Checkpoint(Protocol):
    """Named tensors and a configuration. Opening reads headers only; each tensor is read when asked for.

    ``source`` is for messages. ``config`` uses the terms of a Hugging Face ``config.json``.
    """

    source: str
    config: dict[str, Any]

    def names(self) -> tuple[str, ...]:
        """Names of the tensors that can be asked for."""
        ...

    def expect(self, shapes: Shapes) -> None:
        """Hold what is stored against what the model needs, before anything big is read.

        Errors: ModelError for a missing tensor, a wrong shape, or a tensor the model has no place for.
        A synthetic checkpoint learns its tensors here.
        """
        ...

    def tensor(self, name: str) -> Tensor:
        """The tensor as a fresh, contiguous float32 copy. Errors: ModelError naming source and ``name``."""
        ...

    def stored(self, name: str) -> Tensor | QuantRows:
        """The same values in the storage of the file: blocks, or a tensor of the file's own float dtype.

        May be a view of the mapped file: to be packed or copied, never changed or kept. Formats that have no
        blocks, and tensors that need arithmetic on reading, give what ``tensor`` gives. Errors: as ``tensor``.
        """
        ...

    def packed_bytes(self, name: str) -> int:
        """Least size of what ``stored`` gives once it is packed, known without reading it: float16 that loses nothing
        in bfloat16 keeps its size. ``name`` is one that ``expect`` has accepted."""
        ...


def check_shapes(source: str, stored: Shapes, needed: Shapes, where: Callable[[str], str] | None = None) -> None:
    """Raise ModelError unless ``stored`` holds exactly the ``needed`` tensors. ``where``: the file of a stored one.

    A head that the model ties to the embedding may be stored all the same; so may derived buffers.
    """
    missing = [name for name in needed if name not in stored]
    if missing:
        raise ModelError(source, f"{len(missing)} tensors are missing, first: {missing[0]}")
    for name, shape in needed.items():
        if stored[name] != shape:
            raise ModelError(f"{source}: {name}", f"has shape {stored[name]}, the configuration says {shape}")
    extra = [name for name in stored if name not in needed and not _may_be_extra(name)]
    if extra:
        raise ModelError(
            f"{where(extra[0]) if where else source}: {extra[0]}",
            f"is one of {len(extra)} tensors that this architecture has no place for",
        )


def _may_be_extra(name: str) -> bool:
    return name == "lm_head.weight" or name.endswith(DERIVED_SUFFIXES)

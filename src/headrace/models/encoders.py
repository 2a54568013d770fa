"""Encoders by architecture, beside the generating models of ``registry``; and how their rows become one vector."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch.nn.functional as F
from torch import Tensor

from headrace.contract.errors import ModelError
from headrace.kernels.ops import Ops

from .bert.assembly import load_bert
from .weights.checkpoint import Checkpoint
from .weights.hf_config import read_json_list, read_json_object


class EncoderModel(Protocol):
    """``hidden``: (T, hidden) of one text's ids."""

    def hidden(self, ids: Sequence[int]) -> Tensor: ...


ENCODERS: dict[str, Callable[[Checkpoint, Ops], EncoderModel]] = {"BertModel": load_bert}


@dataclass(frozen=True, slots=True)
class Pooling:
    """The mean over all rows, special tokens included; then, with ``normalise``, divided by its length."""

    normalise: bool = True

    def vector(self, hidden: Tensor) -> Tensor:
        """(T, hidden) -> (hidden,)."""
        mean = hidden.mean(dim=0)
        return F.normalize(mean, dim=0) if self.normalise else mean


def load_encoder(checkpoint: Checkpoint, ops: Ops) -> EncoderModel:
    """Raises ModelError for an architecture that is no known encoder."""
    listed = checkpoint.config.get("architectures")
    name = listed[0] if isinstance(listed, list) and len(listed) == 1 else listed
    if not isinstance(name, str) or name not in ENCODERS:
        known = ", ".join(sorted(ENCODERS))
        raise ModelError(f"{checkpoint.source}: architectures", f"{listed!r} is no known encoder; known: {known}")
    return ENCODERS[name](checkpoint, ops)


def read_pooling(folder: Path) -> Pooling:
    """From the files of sentence-transformers where they are there. Raises ModelError for another pooling than the
    mean."""
    pooling = folder / "1_Pooling" / "config.json"
    if pooling.is_file():
        modes = {k for k, v in read_json_object(pooling).items() if k.startswith("pooling_mode") and v is True}
        if modes != {"pooling_mode_mean_tokens"}:
            raise ModelError(str(pooling), f"only pooling_mode_mean_tokens is known, got {sorted(modes)}")
    modules = folder / "modules.json"
    if not modules.is_file():
        return Pooling()
    kinds = [module.get("type", "") for module in read_json_list(modules) if isinstance(module, dict)]
    return Pooling(any(str(kind).endswith(".Normalize") for kind in kinds))

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
MODULES = ("Transformer", "Pooling", "Normalize")
POOLING = "1_Pooling/config.json"


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
    """From the files of sentence-transformers; a local folder without them has the normalised mean.

    Raises ModelError for another pooling, for a module that would be left out, and for a pulled folder with neither
    file: an older pull did not take them, and a guess would be wrong without a sign.
    """
    pooling, modules = folder / POOLING, folder / "modules.json"
    if pooling.is_file():
        modes = {k for k, v in read_json_object(pooling).items() if k.startswith("pooling_mode") and v is True}
        if modes != {"pooling_mode_mean_tokens"}:
            raise ModelError(str(pooling), f"only pooling_mode_mean_tokens is known, got {sorted(modes)}")
    if modules.is_file():
        return Pooling("Normalize" in _module_kinds(modules))
    if not pooling.is_file() and (folder / ".complete").is_file():
        raise ModelError(
            str(folder),
            f"was pulled without modules.json and {POOLING}, so nothing says how rows become one vector; remove the "
            "folder and pull it again, or name a copy outside the cache if the model has no such files",
        )
    return Pooling()


def _module_kinds(modules: Path) -> set[str]:
    """The kinds of the modules after one another, each of which is known: the last part of its dotted ``type``."""
    kinds = set()
    for number, module in enumerate(read_json_list(modules)):
        if not isinstance(module, dict) or not isinstance(module.get("type"), str):
            raise ModelError(str(modules), f"entry {number} is no object with a type")
        kinds.add(kind := module["type"].rpartition(".")[2])
        if kind not in MODULES:
            raise ModelError(
                str(modules), f"entry {number}: {module['type']!r} is not known; known: {', '.join(MODULES)}"
            )
        if kind == "Pooling" and module.get("path", "1_Pooling") != "1_Pooling":
            raise ModelError(str(modules), f"entry {number}: the pooling must lie in 1_Pooling, got {module['path']!r}")
    return kinds

"""Checkpoints: named float32 tensors and a configuration, whatever the file format. No model code, no ops.

The two names load on first use: a front that reads only a file's header must not pay for torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .checkpoint import Checkpoint
    from .open import open_checkpoint

__all__ = ["Checkpoint", "open_checkpoint"]


def __getattr__(name: str) -> Any:
    if name == "Checkpoint":
        from .checkpoint import Checkpoint

        return Checkpoint
    if name == "open_checkpoint":
        from .open import open_checkpoint

        return open_checkpoint
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

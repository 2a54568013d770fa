"""Checkpoints: named float32 tensors and a configuration, whatever the file format. No model code, no ops."""

from .checkpoint import Checkpoint
from .open import open_checkpoint

__all__ = ["Checkpoint", "open_checkpoint"]

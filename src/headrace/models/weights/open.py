"""Chooses the reader for a path. The only place that knows which formats exist."""

from __future__ import annotations

from pathlib import Path

from headrace.contract.errors import ModelError
from headrace.contract.files import require_regular

from .checkpoint import Checkpoint
from .dummy import DummyCheckpoint
from .gguf_checkpoint import GGUFCheckpoint
from .gguf_header import MAGIC
from .hf_config import read_config
from .hf_directory import HFDirectory


def open_checkpoint(path: Path, *, dummy_seed: int | None = None) -> Checkpoint:
    """Open a Hugging Face directory or a ``.gguf`` file; headers only are read.

    With ``dummy_seed`` the weights are synthetic; ``path`` is a ``config.json`` or a directory that has one.
    Errors: ModelError naming the file at fault.
    """
    path = Path(path)
    if not path.exists():
        raise ModelError(str(path), "no such file or directory")
    if dummy_seed is not None:
        return DummyCheckpoint(str(path), read_config(path), dummy_seed)
    if path.is_dir():
        return HFDirectory(path)
    if _starts_with_magic(path):
        return GGUFCheckpoint(path)
    raise ModelError(str(path), "is not a GGUF file (wrong magic); give a .gguf file or a model directory")


def _starts_with_magic(path: Path) -> bool:
    try:
        require_regular(path)
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError as error:
        raise ModelError(str(path), f"cannot be read: {error.strerror}") from error

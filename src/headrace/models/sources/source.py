"""What a resolved model name is: files on this machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Progress = Callable[[int, int], None]
"""Called with ``(bytes done, bytes in total)`` while files are fetched; the total may grow as sizes become
known.
"""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """``path``: a ``.gguf`` file, a directory in Hugging Face's layout, or (``dummy``) a ``config.json``
    alone.

    ``tokenizer_path`` is what a tokenizer can be loaded from; None when the model has none.
    """

    name: str
    path: Path
    tokenizer_path: Path | None
    dummy: bool = False


def local_source(name: str, path: Path) -> ModelSource:
    """The source for files that are there: a GGUF file or a directory."""
    if path.is_file():
        return ModelSource(name, path, path)
    has_tokenizer = (path / "tokenizer.json").is_file()
    return ModelSource(name, path, path if has_tokenizer else None)

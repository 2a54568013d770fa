"""Reads a ``config.json``. Checks that it is a JSON object, not what it means."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headrace.contract.errors import ModelError
from headrace.contract.files import read_small

WANTED = "a model folder has config.json, *.safetensors and the tokenizer's files; or name a .gguf file"


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in ``path``. Errors: ModelError when it is no file of sane size or not a JSON object."""
    value = _read_json(path)
    if not isinstance(value, dict):
        raise ModelError(str(path), "is not a JSON object")
    return value


def read_json_list(path: Path) -> list[Any]:
    """The JSON list in ``path``. Errors as above."""
    value = _read_json(path)
    if not isinstance(value, list):
        raise ModelError(str(path), "is not a JSON list")
    return value


def _read_json(path: Path) -> Any:
    try:
        return json.loads(read_small(path))
    except OSError as error:
        raise ModelError(str(path), f"cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(str(path), f"is not valid JSON: {error}") from error


def read_config(path: Path) -> dict[str, Any]:
    """The configuration in ``path`` (a file), or in its ``config.json`` (a directory)."""
    if not path.is_dir():
        return read_json_object(path)
    if not (path / "config.json").exists():
        raise ModelError(str(path), f"holds no config.json: {WANTED}")
    return read_json_object(path / "config.json")

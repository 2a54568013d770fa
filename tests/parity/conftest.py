"""Tiny models, built once per family."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import harness
import pytest

from headrace.models.context import Model

FAMILIES = ("llama", "qwen2", "qwen3", "gemma3", "qwen2-sliding", "llama+blocks", "gemma3+blocks")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Model]:
    """``tiny(family)``: a loaded model."""
    folder: Path = tmp_path_factory.mktemp("tiny")
    loaded: dict[str, Model] = {}

    def get(family: str) -> Model:
        if family not in loaded:
            loaded[family] = harness.load_tiny(family, folder)
        return loaded[family]

    return get


@pytest.fixture(params=FAMILIES)
def model(request: pytest.FixtureRequest, tiny: Callable[[str], Model]) -> Model:
    return tiny(request.param)

"""The default model with its real weights, loaded once. Pulled on first use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace import LLM


@pytest.fixture(scope="session")
def llm() -> Iterator[LLM]:
    with LLM(dtype="float32", kv_memory=256 << 20, strict=True) as loaded:
        yield loaded

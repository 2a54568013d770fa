from __future__ import annotations

from pathlib import Path

import pytest
from small_tokenizers import byte_level_pairs, sentencepiece_pairs, write_gguf

from headrace.api.text.tokenizer import Tokenizer, load_tokenizer


@pytest.fixture(scope="session")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path: Path = tmp_path_factory.mktemp("bytes") / "m.gguf"
    return load_tokenizer(write_gguf(path, byte_level_pairs()))


@pytest.fixture(scope="session")
def sentencepiece(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path: Path = tmp_path_factory.mktemp("pieces") / "m.gguf"
    return load_tokenizer(write_gguf(path, sentencepiece_pairs()))


@pytest.fixture(scope="session", params=["byte_level", "sentencepiece"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return request.getfixturevalue(request.param)

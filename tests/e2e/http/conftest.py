"""Servers that tests share: a scripted one and a tiny model's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from served import Running, Script, dummy_llm, running, scripted_llm, text_tokenizer

ANSWERS = {
    b"stop-whole": b"abcDEFGHIJxyz",
    b"stop-not": b"abcDEFGHIXxyz",
    b"lone-bytes": b"\xe2\x80A\xc3",
    b"emoji " + "😀".encode()[:2]: "😀".encode()[2:] + b"!",
    b"spelled": b"<|end|>after",
}


@pytest.fixture(scope="session")
def script(tmp_path_factory: pytest.TempPathFactory) -> Script:
    return Script(text_tokenizer(tmp_path_factory.mktemp("tokenizer")), ANSWERS)


@pytest.fixture(scope="module")
def scripted(script: Script) -> Iterator[Running]:
    with running(lambda: scripted_llm(script)) as made:
        yield made


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("tiny")
    with running(lambda: dummy_llm(folder)) as made:
        yield made

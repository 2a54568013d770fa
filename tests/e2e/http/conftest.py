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
STOPS = (b"stop-whole", b"stop-not")


@pytest.fixture(scope="session")
def script(tmp_path_factory: pytest.TempPathFactory) -> Script:
    return Script(text_tokenizer(tmp_path_factory.mktemp("tokenizer")), ANSWERS)


class PiecedScript(Script):
    """Answers are drawn in the tokenizer's own pieces, not byte by byte."""

    def ids(self, raw: bytes) -> list[int]:
        return self.tokenizer.encode(raw.decode(), add_special=False, parse_special=False)


@pytest.fixture(scope="module")
def pieced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Draws ``stop-whole`` as abc, DEF, G, HI, J, xyz."""
    merges = [("D", "E"), ("DE", "F"), ("H", "I"), ("a", "b"), ("ab", "c"), ("x", "y"), ("xy", "z")]
    made = PiecedScript(text_tokenizer(tmp_path_factory.mktemp("pieces"), merges), {k: ANSWERS[k] for k in STOPS})
    with running(lambda: scripted_llm(made)) as server:
        yield server


@pytest.fixture(scope="module")
def scripted(script: Script) -> Iterator[Running]:
    with running(lambda: scripted_llm(script)) as made:
        yield made


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("tiny")
    with running(lambda: dummy_llm(folder)) as made:
        yield made

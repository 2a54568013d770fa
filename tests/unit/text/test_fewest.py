"""The bound on a text's tokens: never above the truth, silent where a vocabulary loses text, cheap where it refuses."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from small_tokenizers import sentencepiece_pairs, write_gguf
from tokenizers import models, normalizers, pre_tokenizers

from headrace.api.text import tokenizer as tokenizer_module
from headrace.api.text.fewest import Density, density
from headrace.api.text.pieces import ALPHABET, PieceKind, PieceRule
from headrace.api.text.tokenizer import Tokenizer, load_tokenizer
from headrace.contract.errors import InvalidRequest

BYTES = PieceRule(PieceKind.BYTE_LEVEL)
CHARS = st.text(max_size=60) | st.text("hello wrd<|turn>▁\u1112\u1161\u11ab\u03c9\u0314", max_size=200)


def byte_level_backend(alphabet: Iterable[str] = ALPHABET, **parts: Any) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE({char: i for i, char in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    for name, part in parts.items():
        setattr(backend, name, part)
    return backend


@settings(deadline=None)
@given(CHARS)
def test_no_text_has_fewer_tokens(tokenizer: Tokenizer, text: str) -> None:
    fits = len(tokenizer.encode(text, add_special=False)) + 1
    tokenizer.check_fits("prompt", text, fits)  # whatever really fits is never refused


@settings(deadline=None)
@given(CHARS)
def test_composition_is_counted_in(text: str) -> None:
    backend = byte_level_backend(normalizer=normalizers.NFC())
    found = density(backend, BYTES)
    assert found is not None
    assert found.fewest(text) <= len(backend.encode(text).ids)


@settings(deadline=None)
@given(CHARS)
def test_bytes_without_a_piece_count_for_nothing(text: str) -> None:
    """As in real vocabularies, which leave out bytes that text hardly has."""
    alphabet = [char for char, byte in ALPHABET.items() if chr(byte) not in "h\xe1\xf3"]
    backend = byte_level_backend(alphabet)
    assert density(backend, BYTES) == Density(2, b"h\xe1\xf3")
    assert Density(2, b"h\xe1\xf3").fewest(text) <= len(backend.encode(text).ids)


def test_what_cannot_fit_is_refused_unread(byte_level: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_module, "_encoding", None)  # a call of it would fail
    with pytest.raises(InvalidRequest, match=r"prompt: at least \d+ tokens leave no room .* 1000 tokens"):
        byte_level.check_fits("prompt", "x" * 100_000, 1000)
    byte_level.check_fits("prompt", "x" * 999, 1000)


def test_silent_where_text_may_vanish(tmp_path: Path) -> None:
    lossy = [
        byte_level_backend(normalizer=normalizers.Lowercase()),
        byte_level_backend(pre_tokenizer=pre_tokenizers.Whitespace()),
        byte_level_backend(pre_tokenizer=pre_tokenizers.Split(" ", "removed")),
    ]
    greedy = byte_level_backend()
    greedy.add_special_tokens([tokenizers.AddedToken("<mask>", lstrip=True)])
    assert [density(backend, BYTES) for backend in [*lossy, greedy]] == [None] * 4
    assert density(byte_level_backend(), PieceRule(PieceKind.WORDPIECE)) is None
    pairs = sentencepiece_pairs()
    pairs["tokenizer.ggml.tokens"][10] = "without-a-byte"
    holed = load_tokenizer(write_gguf(tmp_path / "m.gguf", pairs))
    holed.check_fits("prompt", "x" * 10_000, 100)


def test_large_texts_let_others_run(byte_level: Tokenizer) -> None:
    """The library gives up the interpreter's lock in ``encode_batch`` only; the ids are the same."""

    class Spy:
        def __init__(self, backend: tokenizers.Tokenizer) -> None:
            self.backend, self.calls = backend, list[str]()

        def __getattr__(self, name: str) -> Any:
            self.calls.append(name)
            return getattr(self.backend, name)

    spy = Spy(byte_level._backend)
    text = "hello world " * 500
    ids = tokenizer_module._encoding(spy, text).ids  # type: ignore[arg-type]
    tokenizer_module._encoding(spy, "hello")  # type: ignore[arg-type]
    assert spy.calls == ["encode_batch", "encode"]
    assert ids == byte_level._backend.encode(text, add_special_tokens=False).ids

"""Tokens are read no sooner than their text is told, whatever its bytes and however a stop holds it back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from served import text_tokenizer

from headrace.api.choice import Choice
from headrace.api.protocol.held_tokens import HeldTokens
from headrace.api.text.tokenizer import Tokenizer
from headrace.contract.request import SamplingParams
from headrace.contract.result import TokenDelta

PIECES = [b"X", b"Y", b"Z", b"a", b"\xff", b"\xe2", b"\x80", b"\x99", b"\xf0", b"\xc3\xa9"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return text_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def read(tokenizer: Tokenizer, raw: bytes, stop: str, size: int) -> tuple[str, str, str | None, HeldTokens, list[int]]:
    """What was told, what the taken tokens say, the stop string that was met; all in deltas of ``size`` tokens."""
    by_byte = {tokenizer.token_bytes(i): i for i in range(256)}
    ids = [by_byte[bytes([byte])] for byte in raw]
    choice = Choice(0, SamplingParams(stop=stop), tokenizer)
    held, taken, told = HeldTokens(tokenizer, True), list[int](), ""
    for first in range(0, len(ids), size):
        start = len(choice.output.token_ids)
        text = choice.push(TokenDelta("r", ids[first : first + size]))
        held.put(choice.output.token_ids[start:], text)
        taken += held.take()
        told += text
        whole = tokenizer.decode(taken, continues=True)
        assert told.startswith(whole)  # nothing that was held back
        if choice.finished:
            break
    return told, tokenizer.decode(taken, continues=True), choice.output.stop_reason, held, taken  # type: ignore[return-value]


@given(pieces=st.lists(st.sampled_from(PIECES), max_size=24), size=st.integers(1, 5))
def test_no_token_is_read_before_its_text_is_told(tokenizer: Tokenizer, pieces: list[bytes], size: int) -> None:
    told, said, stopped, held, _ = read(tokenizer, b"".join(pieces), "XYZ", size)
    split = held.split
    assert told == said + (split[1] if split is not None else "")
    if stopped is not None:
        assert "XYZ" not in said


def test_a_byte_that_is_no_character_makes_room_for_nothing_else(tokenizer: Tokenizer) -> None:
    told, said, stopped, held, _ = read(tokenizer, b"\xff\xff\xffaXY", "XYZ", 1)
    assert (told, said, stopped) == ("\ufffd\ufffd\ufffda", "\ufffd\ufffd\ufffda", None)
    assert len(held.take_all()) == 2
    assert (held.split, held.take()) == (None, [])

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.api.text.detokenize import IncrementalDetokenizer
from headrace.api.text.tokenizer import Tokenizer


def byte_ids(tokenizer: Tokenizer, raw: bytes) -> list[int]:
    by_bytes = {tokenizer.token_bytes(i): i for i in reversed(range(tokenizer.vocab_size))}
    return [by_bytes[bytes([byte])] for byte in raw]


def stream(tokenizer: Tokenizer, groups: list[list[int]], **options: bool) -> list[str]:
    detokenizer = IncrementalDetokenizer(tokenizer, **options)
    return [*(detokenizer.push(group) for group in groups), detokenizer.flush()]


@given(data=st.data())
def test_any_cut_equals_decoding_the_whole(tokenizer: Tokenizer, data: st.DataObject) -> None:
    ids = st.integers(0, tokenizer.vocab_size + 3)
    groups = data.draw(st.lists(st.lists(ids, max_size=5), max_size=30))
    skip, continues = data.draw(st.booleans()), data.draw(st.booleans())
    pieces = stream(tokenizer, groups, skip_special=skip, continues=continues)
    whole = [index for group in groups for index in group]
    assert "".join(pieces) == tokenizer.decode(whole, skip_special=skip, continues=continues)


@given(text=st.text())
def test_text_survives_encoding_and_streaming(byte_level: Tokenizer, text: str) -> None:
    ids = byte_level.encode(text, parse_special=False)
    assert "".join(stream(byte_level, [[index] for index in ids])) == text


def test_no_piece_holds_half_a_character(tokenizer: Tokenizer) -> None:
    ids = byte_ids(tokenizer, "a😀é".encode())
    assert stream(tokenizer, [[index] for index in ids]) == ["a", "", "", "", "😀", "", "é", ""]


def test_undecodable_bytes_become_replacement_characters(tokenizer: Tokenizer) -> None:
    ids = byte_ids(tokenizer, b"\xe2\x80A\xc3")
    assert stream(tokenizer, [[index] for index in ids]) == ["", "", "\ufffdA", "", "\ufffd"]


def test_control_tokens_are_silent_unless_asked_for(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("hello<|turn|> world")
    assert "".join(stream(byte_level, [ids])) == "hello world"
    assert "".join(stream(byte_level, [ids], skip_special=False)) == "<|bos|>hello<|turn|> world"

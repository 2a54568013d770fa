from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from small_tokenizers import byte_level_pairs, sentencepiece_pairs, write_directory, write_gguf
from tokenizers import models, processors

from headrace.api.text.tokenizer import Tokenizer, load_tokenizer
from headrace.contract.errors import ModelError


def spellings(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    return [tokenizer.token_text(index) for index in ids]


def test_byte_level_merges_and_digits(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("hello world 12", add_special=False)
    assert spellings(byte_level, ids) == ["hello", "Ġworld", "Ġ", "1", "2"]


def test_sentencepiece_merges_by_score_and_falls_back_to_bytes(sentencepiece: Tokenizer) -> None:
    ids = sentencepiece.encode("hello hello é", add_special=False)
    assert spellings(sentencepiece, ids) == ["hello", "▁hello", "▁", "<0xC3>", "<0xA9>"]
    assert sentencepiece.decode(ids) == "hello hello é"


def test_control_spellings_are_parsed_or_spelled_out(tokenizer: Tokenizer) -> None:
    spelling = tokenizer.token_text(tokenizer.eos_ids[0])
    text = f"hello{spelling}hello"
    assert tokenizer.eos_ids[0] in tokenizer.encode(text)
    plain = tokenizer.encode(text, add_special=False, parse_special=False)
    assert not tokenizer.special_ids & set(plain)
    assert tokenizer.decode(plain) == text


def test_parsing_works_again_after_a_plain_encoding(byte_level: Tokenizer) -> None:
    byte_level.encode("<|turn|>", parse_special=False)
    assert byte_level.encode("<|turn|>", add_special=False) == [2]


def test_text_that_could_merge_into_a_control_token_does_not(tmp_path: Path) -> None:
    vocab = {token: i for i, token in enumerate(["<", "a", ">", "<a", "<a>"])}
    backend = tokenizers.Tokenizer(models.BPE(vocab, [("<", "a"), ("<a", ">")]))
    backend.add_special_tokens(["<a>"])
    loaded = load_tokenizer(write_directory(tmp_path, backend.to_str()))
    assert loaded.encode("<a>") == [4]
    assert loaded.encode("<a>", parse_special=False) == [0, 1, 2]


@given(text=st.text(st.sampled_from("<|turneosbp> h\ue000é"), max_size=40))
def test_plain_encoding_never_yields_a_control_id(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, add_special=False, parse_special=False)
    assert not tokenizer.special_ids & set(ids)
    assert tokenizer.decode(ids) == text


def test_exactly_one_bos(tokenizer: Tokenizer) -> None:
    bos = tokenizer.bos_id
    assert bos is not None
    written = tokenizer.token_text(bos) + "hello"
    assert tokenizer.encode("hello").count(bos) == 1
    assert tokenizer.encode(written) == tokenizer.encode("hello")
    assert tokenizer.encode("hello", add_special=False).count(bos) == 0
    assert tokenizer.encode(written, parse_special=False).count(bos) == 1


def test_lone_surrogates_become_replacement_characters(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("a\ud800b\ud83d\ude00", add_special=False)
    assert byte_level.decode(ids) == "a\ufffdb😀"


@pytest.mark.parametrize("text", ["a" * 300_000, " " * 300_000, "<" * 300_000, "ab c\n" * 60_000])
def test_long_input(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text, parse_special=False)) == text


def test_token_bytes(tokenizer: Tokenizer) -> None:
    eos = tokenizer.eos_ids[0]
    assert tokenizer.token_bytes(eos) == tokenizer.token_text(eos).encode()
    assert tokenizer.token_bytes(tokenizer.vocab_size) == b""
    assert tokenizer.token_bytes(-1) == b""
    space = tokenizer.encode("hello hello", add_special=False)
    assert b"".join(map(tokenizer.token_bytes, space)) == b"hello hello"


def test_a_prefix_space_is_added_and_removed(tmp_path: Path) -> None:
    pairs = sentencepiece_pairs(add_space_prefix=True)
    loaded = load_tokenizer(write_gguf(tmp_path / "m.gguf", pairs))
    ids = loaded.encode("hello", add_special=False)
    assert spellings(loaded, ids) == ["▁hello"]
    assert loaded.decode(ids) == "hello"
    assert loaded.decode(ids, continues=True) == " hello"


def test_end_ids_come_from_every_key_and_known_spelling(tmp_path: Path) -> None:
    pairs = byte_level_pairs(eot_token_id=2)
    tokens = pairs["tokenizer.ggml.tokens"]
    tokens[3] = "<|im_end|>"
    loaded = load_tokenizer(write_gguf(tmp_path / "m.gguf", pairs))
    assert loaded.eos_ids == (1, 2, 3)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"pre": "no-such-kind"}, "tokenizer.ggml.pre"),
        ({"model": "rwkv"}, "tokenizer.ggml.model"),
        ({"eos_token_id": 10**6}, "tokenizer.ggml.eos_token_id"),
        ({"token_type": [1]}, "tokenizer.ggml.token_type"),
        ({"merges": ["not inside"]}, "tokenizer.ggml.merges"),
    ],
)
def test_gguf_faults_name_the_key(tmp_path: Path, change: dict[str, object], key: str) -> None:
    with pytest.raises(ModelError, match=key):
        load_tokenizer(write_gguf(tmp_path / "m.gguf", byte_level_pairs(**change)))


ODD = [5, "abc", ["a"], [1, 2], [0.5, 1.5], True]
TEXTS = ("tokens", "merges")
FITTING = {  # per key, which of these are of the right kind
    **{key: [["a"]] for key in TEXTS},
    **{key: [5] for key in ("bos_token_id", "eos_token_id", "eot_token_id", "unknown_token_id")},
    **{key: ["abc"] for key in ("model", "pre")},
    **{key: [True] for key in ("add_bos_token", "add_eos_token", "add_space_prefix")},
    "token_type": [[1, 2]],
    "scores": [[1, 2], [0.5, 1.5]],
}


@pytest.mark.parametrize("key", FITTING)
@pytest.mark.parametrize("value", ODD, ids=repr)
def test_a_gguf_value_of_another_kind_names_file_and_key(tmp_path: Path, key: str, value: object) -> None:
    if repr(value) in map(repr, FITTING[key]):
        pytest.skip("is of the right kind")
    pairs = sentencepiece_pairs if key in ("scores", "add_space_prefix") else byte_level_pairs
    with pytest.raises(ModelError, match=rf"m\.gguf: tokenizer\.ggml\.{key}: must be .*, got "):
        load_tokenizer(write_gguf(tmp_path / "m.gguf", pairs(**{key: value})))


@pytest.mark.parametrize("value", [5, ["a"], [1, 2]])
def test_a_gguf_chat_template_is_a_text(tmp_path: Path, value: object) -> None:
    pairs = {**byte_level_pairs(), "tokenizer.chat_template": value}
    with pytest.raises(ModelError, match=r"tokenizer\.chat_template: must be a text"):
        load_tokenizer(write_gguf(tmp_path / "m.gguf", pairs))


def test_a_gguf_score_that_is_no_number(tmp_path: Path) -> None:
    pairs = sentencepiece_pairs()
    pairs["tokenizer.ggml.scores"][7] = float("nan")
    with pytest.raises(ModelError, match=r"scores: .*no number"):
        load_tokenizer(write_gguf(tmp_path / "m.gguf", pairs))


@given(cut=st.integers(0, 2000), data=st.data())
def test_a_damaged_gguf_is_a_model_error(
    tmp_path_factory: pytest.TempPathFactory, cut: int, data: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.gguf"
    raw = bytearray(write_gguf(path, byte_level_pairs()).read_bytes())
    if data.draw(st.booleans()):
        raw[cut] ^= data.draw(st.integers(1, 255))
    else:
        del raw[cut:]
    path.write_bytes(raw)
    with contextlib.suppress(ModelError):  # anything else that comes out is a fault
        load_tokenizer(path)


def test_directory_reads_special_ids_from_all_files(tmp_path: Path) -> None:
    path = write_directory(
        tmp_path,
        _word_level(),
        tokenizer_config={"bos_token": {"content": "<s>"}, "eos_token": "</s>", "chat_template": "T"},
        generation_config={"eos_token_id": [2, 3]},
        config={"eos_token_id": 4},
    )
    loaded = load_tokenizer(path)
    assert (loaded.bos_id, loaded.eos_ids, loaded.chat_template) == (1, (2, 3, 4), "T")
    assert loaded.encode("hi") == [1, 5, 2]


def test_explicit_add_bos_overrides_the_file(tmp_path: Path) -> None:
    config = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": False, "add_eos_token": False}
    loaded = load_tokenizer(write_directory(tmp_path, _word_level(), tokenizer_config=config))
    assert loaded.encode("hi") == [5]
    config["add_bos_token"] = True
    plain = _word_level(wrapped=False)
    loaded = load_tokenizer(write_directory(tmp_path, plain, tokenizer_config=config))
    assert loaded.encode("hi") == [1, 5]


def test_a_begin_token_that_nobody_sets_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Without the file that says so, prompts begin without it: another model, as far as answers go."""
    plain, config = _word_level(wrapped=False), {"bos_token_id": 1}
    path = write_directory(tmp_path, plain, config=config, tokenizer_config={"add_bos_token": False})
    load_tokenizer(path)
    assert not caplog.records
    (path / "tokenizer_config.json").unlink()
    assert load_tokenizer(path).encode("hi") == [5]
    assert [record.getMessage().partition(": ")[0] for record in caplog.records] == [
        f"{path} holds no tokenizer_config.json"
    ]


def test_stored_truncation_and_padding_are_ignored(tmp_path: Path) -> None:
    backend = tokenizers.Tokenizer.from_str(_word_level(wrapped=False))
    backend.enable_truncation(2)
    backend.enable_padding(length=4)
    loaded = load_tokenizer(write_directory(tmp_path, backend.to_str()))
    assert loaded.encode("hi hi hi") == [5, 5, 5]


def test_the_template_file_wins(tmp_path: Path) -> None:
    templates = [{"name": "tool_use", "template": "B"}, {"name": "default", "template": "A"}]
    path = write_directory(tmp_path, _word_level(), tokenizer_config={"chat_template": templates})
    assert load_tokenizer(path).chat_template == "A"
    (path / "chat_template.jinja").write_text("C")
    assert load_tokenizer(path).chat_template == "C"


def test_directory_faults_name_the_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path)
    write_directory(tmp_path, _word_level())
    (tmp_path / "generation_config.json").write_text("[]")
    with pytest.raises(ModelError, match=r"generation_config\.json"):
        load_tokenizer(tmp_path)
    with pytest.raises(ModelError, match="nowhere"):
        load_tokenizer(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["config", "generation_config", "tokenizer_config"])
def test_whatever_lies_beside_a_tokenizer_is_no_other_kind_of_error(tmp_path: Path, name: str) -> None:
    """What the backend's own reader makes of the other fields of these files is said elsewhere."""
    path = write_directory(tmp_path, _word_level())
    for content in ('{"a":' * 100_000, "[1]", "\x00", "9" * 5000):
        (path / f"{name}.json").write_text(content)
        with pytest.raises(ModelError, match=name):
            load_tokenizer(path)
    (path / f"{name}.json").unlink()
    os.mkfifo(path / f"{name}.json")  # would block for ever
    with pytest.raises(ModelError, match=name):
        load_tokenizer(path)


def test_ids_that_no_token_can_have_end_nothing(tmp_path: Path) -> None:
    """The engine takes ids of 32 bits: one beyond would fail every request."""
    path = write_directory(
        tmp_path,
        _word_level(),
        tokenizer_config={"chat_template": [{"name": ["default"], "template": "A"}, 5]},
        generation_config={"eos_token_id": [3, -1, 2**31, 10**400, True, "2"]},
        config={"text_config": "none"},
    )
    loaded = load_tokenizer(path)
    assert (loaded.eos_ids, loaded.chat_template) == ((3,), None)


def test_a_template_that_is_no_text_names_its_file(tmp_path: Path) -> None:
    path = write_directory(tmp_path, _word_level())
    (path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(ModelError, match=r"chat_template\.jinja"):
        load_tokenizer(path)


def _word_level(wrapped: bool = True) -> str:
    """Whitespace-separated words: ``<unk> <s> </s> <end> <stop> hi``."""
    words = ["<unk>", "<s>", "</s>", "<end>", "<stop>", "hi"]
    backend = tokenizers.Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, "<unk>"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    backend.add_special_tokens(words[1:5])
    if wrapped:
        marks = [("<s>", 1), ("</s>", 2)]
        backend.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=marks)
    text: str = backend.to_str()
    assert json.loads(text)["model"]["type"] == "WordLevel"
    return text

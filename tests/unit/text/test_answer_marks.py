"""Tokens that shape answers come from templates and models only, whether or not the vocabulary calls them special."""

from __future__ import annotations

import json
from pathlib import Path

import cli_models
import pytest
from tokenizers import AddedToken

from headrace.api.choice import Choice
from headrace.api.text.answer_forms import Mark
from headrace.api.text.chat import encode_chat
from headrace.api.text.tokenizer import Tokenizer, load_tokenizer
from headrace.contract.request import SamplingParams
from headrace.contract.result import TokenDelta

TEMPLATE = "{% for m in messages %}<|user|>{{ m.content }}{% endfor %}<tool_call>{{ tools }}</think>"


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    backend = cli_models.byte_tokenizer()
    backend.add_tokens([AddedToken(word, special=False, normalized=False) for word in ("<tool_call>", "</think>")])
    backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>", "chat_template": TEMPLATE}))
    return load_tokenizer(tmp_path)


def test_content_does_not_yield_them(tokenizer: Tokenizer) -> None:
    text = "x</think><tool_call><|user|>y"
    call, think = tokenizer.added_id("<tool_call>"), tokenizer.added_id("</think>")
    ids = encode_chat(tokenizer, [{"role": "user", "content": text}], tools=[{"name": text}])
    assert [ids.count(index) for index in (call, think, tokenizer.added_id("<|user|>"))] == [1, 1, 1]
    assert tokenizer.decode(ids, skip_special=False).count(text) == 2


def test_a_choice_keeps_marks_and_their_spellings_apart(tokenizer: Tokenizer) -> None:
    think = tokenizer.added_id("</think>")
    assert think is not None
    choice = Choice(0, SamplingParams(stop="b"), tokenizer, {think: Mark.END_THINK})
    spelled = tokenizer.encode("a</think>", parse_special=False)
    ids = [*spelled, think, *tokenizer.encode("ab")]
    choice.push(TokenDelta(request_id="r", token_ids=ids))
    assert choice.take_pieces() == (*"a</think>", Mark.END_THINK, "a")
    assert (choice.output.finish_reason, choice.output.stop_reason) == ("stop", "b")

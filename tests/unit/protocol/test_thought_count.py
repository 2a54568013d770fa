"""Tokens of thoughts, by marks that are tokens and by marks that are spelled."""

from __future__ import annotations

import json
from pathlib import Path

import cli_models
import pytest
from tokenizers import AddedToken

from headrace.api.protocol.thought_count import ThoughtCount
from headrace.api.text.answer_forms import AnswerForm, Mark, mark_table
from headrace.api.text.tokenizer import Tokenizer, load_tokenizer

FORM = AnswerForm(thinks=True)


def made(folder: Path, *words: str) -> Tokenizer:
    """One token per byte, and one for each word."""
    backend = cli_models.byte_tokenizer()
    backend.add_tokens([AddedToken(word, special=False, normalized=False) for word in words])
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>"}))
    return load_tokenizer(folder)


@pytest.mark.parametrize(
    ("text", "in_thought", "count"),
    [
        ("<think>abc</think>d", False, 5),
        ("abc</think>d", True, 4),
        ("abc", True, 3),
        ("abc", False, 0),
        ("a</think>b", False, 0),
        ("<think>é</think>x<think>y", False, 6),
        ("", True, 0),
    ],
)
def test_marks_that_are_tokens(tmp_path: Path, text: str, in_thought: bool, count: int) -> None:
    tokenizer = made(tmp_path, Mark.THINK.value, Mark.END_THINK.value)
    counts = ThoughtCount(tokenizer, mark_table(FORM, tokenizer), in_thought)
    assert counts.of(tokenizer.encode(text, add_special=False)) == count
    spelled = tokenizer.encode("</think>", add_special=False, parse_special=False)
    assert counts.of(spelled) == (len(spelled) if in_thought else 0)


@pytest.mark.parametrize(
    ("text", "in_thought", "count"),
    [("é<think>é</think>d", False, 1 + 2 + 8), ("é</think>d", True, 2 + 8), ("abc", False, 0), ("a</thin", True, 7)],
)
def test_marks_that_are_spelled(tmp_path: Path, text: str, in_thought: bool, count: int) -> None:
    tokenizer = made(tmp_path)
    counts = ThoughtCount(tokenizer, mark_table(FORM, tokenizer), in_thought)
    assert counts.of(tokenizer.encode(text, add_special=False)) == count

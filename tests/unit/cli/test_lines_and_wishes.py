"""Input lines: bounded memory, and an error that names the field for everything that cannot be served."""

from __future__ import annotations

import io
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.api.conversations import chat_prompt
from headrace.api.prompts import Preparer
from headrace.cli.batch import lines, wishes
from headrace.cli.batch.lines import Line, read_lines
from headrace.contract.errors import InvalidRequest
from headrace.contract.request import SamplingParams

DEFAULTS = SamplingParams(max_tokens=9, temperature=0.0, stop=None)
TALK = partial(chat_prompt, None, None)  # type: ignore[arg-type]
LLM = SimpleNamespace(tokenizer=None, chat_prompt=TALK, prepare=Preparer(None, 100, 64).prepare)


def read(data: bytes) -> list[tuple[int, bytes | None]]:
    return [(line.number, line.data) for line in read_lines(io.BytesIO(data))]


def test_blank_lines_count_but_are_not_served() -> None:
    assert read(b"\xef\xbb\xbfa\n\n  \r\nb") == [(1, b"a\n"), (4, b"b")]


def test_every_byte_of_a_served_line_is_counted() -> None:
    assert [line.num_bytes for line in read_lines(io.BytesIO(b"abc\nde"))] == [4, 2]


def test_an_endless_line_is_dropped_and_the_next_one_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 10)
    assert read(b"x" * 1000 + b"\nshort\n") == [(1, None), (2, b"short\n")]
    with pytest.raises(InvalidRequest, match="longer than"):
        wishes.decode(Line(1, None, 1001))


@pytest.mark.parametrize("data", [b"not json", b"[1]", b'"x"', b"{", b"\xff", b"[" * 100_000, b'{"a":NaN}', b"7"])
def test_a_line_that_is_no_object_names_the_line(data: bytes) -> None:
    with pytest.raises(InvalidRequest) as caught:
        wishes.decode(Line(1, data, len(data)))
    assert caught.value.field == "line"


@pytest.mark.parametrize("given", [True, 1.5, [], {}])
def test_ids_are_text_or_whole_numbers(given: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        wishes.read_id({"id": given})
    assert caught.value.field == "id"


@pytest.mark.parametrize(
    ("wish", "field"),
    [
        ({}, "prompt"),
        ({"prompt": "a", "prompt_token_ids": [1]}, "prompt"),
        ({"prompt": "text for a model without a tokenizer"}, "prompt"),
        ({"prompt_token_ids": [1], "temprature": 1}, "temprature"),
        ({"prompt_token_ids": []}, "prompt"),
        ({"prompt_token_ids": "abc"}, "prompt_token_ids"),
        ({"prompt_token_ids": [100]}, "prompt_token_ids"),
        ({"prompt_token_ids": [1.5]}, "prompt_token_ids"),
        ({"prompt_token_ids": [1] * 64}, "prompt"),
        ({"prompt_token_ids": [1], "max_tokens": "9"}, "max_tokens"),
        ({"prompt_token_ids": [1], "max_tokens": -1}, "max_tokens"),
        ({"prompt_token_ids": [1], "temperature": True}, "temperature"),
        ({"prompt_token_ids": [1], "temperature": 1e9}, "temperature"),
        ({"prompt_token_ids": [1], "logit_bias": {"a": 1}}, "logit_bias"),
        ({"prompt_token_ids": [1], "logit_bias": {"5": "b"}}, "logit_bias"),
        ({"prompt_token_ids": [1], "stop": [1]}, "stop"),
        ({"prompt_token_ids": [1], "n": 0}, "n"),
        ({"prompt_token_ids": [1], "priority": "high"}, "priority"),
        ({"messages": "Hello"}, "messages"),
        ({"messages": []}, "messages"),
    ],
)
def test_each_error_names_its_field(wish: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        wishes.prepare(LLM, wish, DEFAULTS)  # type: ignore[arg-type]
    assert caught.value.field == field


def test_a_line_overrides_the_defaults_it_names_and_no_other() -> None:
    wish = {"prompt_token_ids": [1, 2], "temperature": 1, "logit_bias": {"5": 3}, "seed": 4}
    prepared = wishes.prepare(LLM, wish, DEFAULTS)  # type: ignore[arg-type]
    sampling = prepared.sampling
    assert (sampling.temperature, sampling.max_tokens, sampling.seed) == (1.0, 9, 4)
    assert sampling.logit_bias == {5: 3.0}
    assert prepared.token_ids == [1, 2]


def test_every_sampling_field_can_be_given() -> None:
    assert set(SamplingParams.__struct_fields__) == wishes.SAMPLING

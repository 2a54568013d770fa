"""Requests of megabytes: refused before the work where they cannot be served, and nobody waits behind one."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from served import Running

TEXT = "many words, " * 400_000  # 4.8 MB; the tokenizer makes an id of each byte


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("/v1/completions", {"prompt": TEXT}),
        ("/v1/completions", {"prompt": [1] * 1_000_000}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": TEXT}]}),
        ("/v1/responses", {"input": TEXT}),
        ("/v1/messages", {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 5}),
    ],
)
def test_what_cannot_fit_is_refused_before_it_is_tokenized(
    scripted: Running, monkeypatch: pytest.MonkeyPatch, route: str, body: dict[str, Any]
) -> None:
    monkeypatch.setattr("headrace.api.text.tokenizer._encoding", None)  # a call of it would fail, with 500
    refused = scripted.post(route, body)
    assert refused.status_code == 400
    assert "tokens leave no room to generate: the context is 20000 tokens" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("prompts", "fields", "field"),
    [
        (4096, {"n": 1024}, "n"),
        (1025, {}, "n"),
        (1000, {"allowed_token_ids": [7] * 4000}, "allowed_token_ids"),
        (1000, {"logprobs": 5}, "logprobs"),
        (1000, {"stop": ["s" * 300]}, "stop"),
    ],
)
def test_what_prompts_and_choices_multiply_is_refused_before_any_is_prepared(
    scripted: Running, monkeypatch: pytest.MonkeyPatch, prompts: int, fields: dict[str, Any], field: str
) -> None:
    monkeypatch.setattr(scripted.host.llm, "prepare", None)  # a call of it would fail, with 500
    refused = scripted.complete(["a"] * prompts, **fields)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, field)


def test_a_million_little_parts_are_refused(scripted: Running) -> None:
    refused = scripted.complete([[1]] * 200_000)
    assert refused.status_code == 400
    assert "more than 131072 arrays and objects" in refused.json()["error"]["message"]


def test_nobody_waits_behind_a_large_prompt(scripted: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = scripted.host.llm.tokenizer
    assert tokenizer is not None
    plain, begun, go = tokenizer.encode, threading.Event(), threading.Event()

    def held(text: str, **marks: bool) -> list[int]:
        if len(text) > 1_000_000:
            begun.set()
            assert go.wait(60)
        return plain(text[:1000], **marks)

    monkeypatch.setattr(tokenizer, "encode", held)
    counts: list[int] = []
    large = threading.Thread(
        target=lambda: counts.append(scripted.post("/tokenize", {"prompt": TEXT}).json()["count"]), daemon=True
    )
    large.start()
    assert begun.wait(60)
    answer = scripted.chat("hello", max_tokens=4)  # its own prompt is tokenized meanwhile
    assert answer.json()["usage"]["completion_tokens"] == 4
    assert not counts
    go.set()
    large.join(60)
    assert counts == [1000]

"""What is told of a prompt beside its answer: scores and ids; in streams what can be, and the rest is refused."""

from __future__ import annotations

from typing import Any

import pytest
from served import Running

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def asked(route: str, **fields: Any) -> dict[str, Any]:
    said = {"prompt": "Scored."} if route == TEXT else {"messages": [{"role": "user", "content": "Scored."}]}
    return {"max_tokens": 2, "temperature": 0, **said, **fields}


@pytest.mark.parametrize("route", [CHAT, TEXT])
def test_scores_of_a_prompt_are_not_for_streams(tiny: Running, route: str) -> None:
    refused = tiny.post(route, asked(route, stream=True, prompt_logprobs=1))
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "prompt_logprobs")
    body = tiny.post(route, asked(route, prompt_logprobs=1)).json()
    scores = body["prompt_logprobs"] if route == CHAT else body["choices"][0]["prompt_logprobs"]
    assert scores[0] is None
    assert all(len(row) in (1, 2) for row in scores[1:])


@pytest.mark.parametrize(("logprobs", "prompt_logprobs"), [(None, 2), (0, 2), (2, 0), (1, 1)])
def test_scores_of_a_prompt_beside_its_echo(tiny: Running, logprobs: int | None, prompt_logprobs: int) -> None:
    """Each of the two wishes gets its own number, whichever is larger."""
    alone = tiny.post(TEXT, asked(TEXT, prompt_logprobs=prompt_logprobs)).json()["choices"][0]
    fields = {"echo": True, "logprobs": logprobs, "prompt_logprobs": prompt_logprobs}
    [both] = tiny.post(TEXT, asked(TEXT, **fields)).json()["choices"]
    assert both["prompt_logprobs"] == alone["prompt_logprobs"]
    [echoed] = tiny.post(TEXT, asked(TEXT, echo=True, logprobs=logprobs)).json()["choices"]
    assert both["logprobs"] == echoed["logprobs"]
    assert "prompt_logprobs" not in echoed


def test_a_prompt_of_one_token_has_a_score_too_and_it_is_none(tiny: Running) -> None:
    [choice] = tiny.complete("x", echo=True, logprobs=1, prompt_logprobs=1, max_tokens=2, n=1).json()["choices"]
    assert choice["prompt_logprobs"] == [None]
    assert choice["logprobs"]["tokens"][0] == "x"
    assert [score is None for score in choice["logprobs"]["token_logprobs"]] == [True, False, False]
    events = tiny.stream(TEXT, {"prompt": ["x", "yz"], "echo": True, "logprobs": 1, "max_tokens": 2})
    for index, length in enumerate((1, 2)):
        rows = [c["logprobs"]["token_logprobs"] for e in events for c in e["choices"] if c["index"] == index]
        scores = [score for row in rows for score in row]
        assert [score is None for score in scores] == [True, *[False] * (length + 1)]


@pytest.mark.parametrize("echo", [False, True])
def test_ids_of_a_text_prompt_come_once_for_each_choice(tiny: Running, echo: bool) -> None:
    body = asked(TEXT, return_token_ids=True, n=2, echo=echo, seed=1)
    whole = tiny.post(TEXT, body).json()["choices"]
    ids = tiny.post("/tokenize", {"prompt": "Scored."}).json()["tokens"]
    events = tiny.stream(TEXT, body)
    for choice in whole:
        pieces = [c for event in events for c in event["choices"] if c["index"] == choice["index"]]
        assert [piece["prompt_token_ids"] for piece in pieces if "prompt_token_ids" in piece] == [ids]
        assert "prompt_token_ids" in pieces[0]
        assert [index for piece in pieces for index in piece["token_ids"]] == choice["token_ids"]
        assert choice["prompt_token_ids"] == ids
        assert (choice["token_ids"][: len(ids)] == ids) is echo


def test_ids_of_a_chat_prompt_come_with_the_first_event(tiny: Running) -> None:
    body = asked(CHAT, return_token_ids=True)
    ids = tiny.post(CHAT, body).json()["prompt_token_ids"]
    events = tiny.stream(CHAT, body)
    assert [event.get("prompt_token_ids") for event in events] == [ids, *[None] * (len(events) - 1)]
    assert not any("prompt_token_ids" in event for event in tiny.stream(CHAT, asked(CHAT)))

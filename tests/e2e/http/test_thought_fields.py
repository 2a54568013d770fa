"""What is asked about thinking reaches the template in every protocol, and thoughts are counted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from served import Running, Script, running, scripted_llm, text_tokenizer

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
TEMPLATE = (
    "{# </think> #}{% for m in messages %}<|user|>{{ m.content }}"
    "{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}<|end|>{% endfor %}"
    "[{{ reasoning_effort }},{{ enable_thinking }}]<|answer|>"
)
ANSWERS = {b"ponder": b"<think>why</think>So."}
COUNT = len(b">why</think>")  # a spelled mark counts from its last token on


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    script = Script(text_tokenizer(tmp_path_factory.mktemp("thinks"), chat_template=TEMPLATE), ANSWERS)
    with running(lambda: scripted_llm(script)) as made:
        yield made


def asked(route: str, text: str = "ponder", **fields: Any) -> dict[str, Any]:
    if route == RESPONSES:
        return {"input": text, "max_output_tokens": 50, **fields}
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 50, **fields}


@pytest.mark.parametrize(
    ("route", "fields", "told"),
    [
        (CHAT, {"reasoning_effort": "low"}, "low,"),
        (CHAT, {"reasoning_effort": "none"}, "none,False"),
        (CHAT, {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}}, "none,True"),
        (RESPONSES, {"reasoning": {"effort": "low"}}, "low,"),
        (RESPONSES, {"reasoning": {"effort": "none", "summary": "auto"}}, "none,False"),
        (RESPONSES, {"reasoning": {}}, ","),
        (MESSAGES, {"output_config": {"effort": "max"}}, "max,"),
        (MESSAGES, {"output_config": {"effort": "max"}, "thinking": {"type": "adaptive"}}, "max,True"),
        (MESSAGES, {"thinking": {"type": "disabled"}}, ",False"),
    ],
)
def test_efforts_reach_the_template(thinker: Running, route: str, fields: dict[str, Any], told: str) -> None:
    answer = thinker.post(route, asked(route, **fields))
    assert answer.status_code == 200, answer.text
    tokenizer = thinker.host.llm.tokenizer
    assert tokenizer is not None
    assert f"[{told}]" in tokenizer.decode(thinker.requests[-1].prompt_token_ids, skip_special=False)
    if route == RESPONSES:
        assert answer.json()["reasoning"]["effort"] == fields["reasoning"].get("effort")


def test_past_thoughts_are_told_to_the_template(thinker: Running) -> None:
    """As each protocol gave them, so they come back."""
    tokenizer = thinker.host.llm.tokenizer
    assert tokenizer is not None
    chat = thinker.post(CHAT, asked(CHAT)).json()["choices"][0]["message"]
    blocks = thinker.post(MESSAGES, asked(MESSAGES)).json()["content"]
    items = thinker.post(RESPONSES, asked(RESPONSES)).json()["output"]
    user = {"role": "user", "content": "and?"}
    bodies = {
        CHAT: {"messages": [chat, user]},
        MESSAGES: {"messages": [{"role": "assistant", "content": blocks}, user], "max_tokens": 1},
        RESPONSES: {"input": [*items, user]},
    }
    for route, body in bodies.items():
        assert thinker.post(route, body).status_code == 200
        told = tokenizer.decode(thinker.requests[-1].prompt_token_ids, skip_special=False)
        assert told.startswith("<|user|>So.(why)<|end|><|user|>and?<|end|>"), route


@pytest.mark.parametrize(("display", "words"), [(None, "why"), ("summarized", "why"), ("omitted", "")])
def test_thoughts_can_be_left_out_of_messages(thinker: Running, display: str | None, words: str) -> None:
    body = asked(MESSAGES, thinking={"type": "enabled", "budget_tokens": 1024, "display": display})
    whole = thinker.post(MESSAGES, body).json()
    assert whole["content"] == [
        {"type": "thinking", "thinking": words, "signature": ""},
        {"type": "text", "text": "So."},
    ]
    assert whole["usage"]["output_tokens_details"] == {"thinking_tokens": COUNT}
    told = [json.loads(one) for one in thinker.raw_stream(MESSAGES, body)]
    assert [e["content_block"]["type"] for e in told if e["type"] == "content_block_start"] == ["thinking", "text"]
    assert "".join(e["delta"].get("thinking", "") for e in told if e["type"] == "content_block_delta") == words
    assert told[-2]["usage"]["output_tokens_details"] == {"thinking_tokens": COUNT}


def test_efforts_count_in_prompts_that_are_only_counted(thinker: Running) -> None:
    body = {"messages": [{"role": "user", "content": "x"}]}
    counts = [
        thinker.post(f"{MESSAGES}/count_tokens", body | fields).json()["input_tokens"]
        for fields in ({}, {"output_config": {"effort": "max"}})
    ]
    assert counts[1] - counts[0] == len("max")


def test_thoughts_are_counted(thinker: Running) -> None:
    whole = thinker.post(CHAT, asked(CHAT, n=2)).json()
    assert whole["usage"]["completion_tokens_details"] == {"reasoning_tokens": 2 * COUNT}
    last = thinker.stream(CHAT, asked(CHAT, n=2, stream_options={"include_usage": True}))[-1]
    assert last["usage"]["completion_tokens_details"] == {"reasoning_tokens": 2 * COUNT}
    usage = thinker.post(RESPONSES, asked(RESPONSES)).json()["usage"]
    assert usage["output_tokens_details"] == {"reasoning_tokens": COUNT}
    final = json.loads(thinker.raw_stream(RESPONSES, asked(RESPONSES))[-1])
    assert final["response"]["usage"] | {"input_tokens_details": None} == usage | {"input_tokens_details": None}


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"top_logprobs": 2}, "top_logprobs"), ({"include": ["message.output_text.logprobs"]}, "include")],
)
def test_a_model_that_thinks_tells_no_logprobs_in_responses(
    thinker: Running, fields: dict[str, Any], param: str
) -> None:
    refused = thinker.post(RESPONSES, asked(RESPONSES, **fields))
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)

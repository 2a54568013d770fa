"""Conversations that bring calls along: what is no call is refused by its place, and results keep roles alternating."""

from __future__ import annotations

from typing import Any

import pytest
from served import Running, Script, running, scripted_llm, text_tokenizer
from test_tools import CALL, TOOLS, folded, plain

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
USER = {"role": "user", "content": "y"}
NAMELESS: list[tuple[dict[str, Any], str]] = [
    ({"tool_calls": [{"function": "x"}]}, "messages[0].tool_calls[0].function"),
    ({"tool_calls": [{"type": "function"}]}, "messages[0].tool_calls[0].function"),
    ({"tool_calls": [{"function": {"name": "f"}}, {"function": {}}]}, "messages[0].tool_calls[1].function"),
    ({"function_call": {"arguments": "{}"}}, "messages[0].function_call"),
    ({"function_call": {"name": 5}}, "messages[0].function_call"),
]


@pytest.mark.parametrize(("fields", "param"), NAMELESS)
@pytest.mark.parametrize("route", [CHAT, "/tokenize"])
def test_a_past_call_of_no_function_is_refused(
    scripted: Running, route: str, fields: dict[str, Any], param: str
) -> None:
    answer = scripted.post(route, {"messages": [{"role": "assistant", **fields}, USER]})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_tools_are_checked_where_they_are_only_tokenized(scripted: Running) -> None:
    answer = scripted.post("/tokenize", {"messages": [USER], "tools": [{"type": "function", "function": "x"}]})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tools[0].function")


ALTERNATE = (
    "{% for m in messages %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "<|user|>{{ m.content }}<|end|>{% endfor %}<|answer|>"
)


def test_results_and_words_beside_them_are_one_message_of_the_user(tmp_path: Any) -> None:
    script = Script(text_tokenizer(tmp_path, chat_template=ALTERNATE))
    call = {"type": "function", "function": {"name": "weather", "arguments": "{}"}}
    calls = [{"id": "a", **call}, {"id": "b", **call}]
    results = [{"role": "tool", "tool_call_id": name, "content": f"result {name}"} for name in "ab"]
    with running(lambda: scripted_llm(script)) as server:
        said = [USER, {"role": "assistant", "content": None, "tool_calls": calls}, *results]
        for messages in (said, [*said, USER]):
            answer = server.post(CHAT, {"messages": messages, "max_tokens": 1})
            assert answer.status_code == 200, answer.text
            told = script.tokenizer.decode(server.requests[-1].prompt_token_ids)
            assert told.index("result a") < told.index("result b")
        used = {"type": "tool_use", "id": "a", "name": "weather", "input": {}}
        result = {"type": "tool_result", "tool_use_id": "a", "content": "result a"}
        turns = [
            {"role": "user", "content": "y"},
            {"role": "assistant", "content": [used]},
            {"role": "user", "content": [result, {"type": "text", "text": "and now?"}]},
        ]
        answer = server.post(MESSAGES, {"messages": turns, "max_tokens": 1})
        assert answer.status_code == 200, answer.text
        twice = server.post(CHAT, {"messages": [USER, USER], "max_tokens": 1})
        assert twice.status_code == 400  # what was said in two messages stays two


@pytest.mark.parametrize("stream", [False, True])
def test_one_call_at_most_where_only_one_is_wanted(tmp_path: Any, stream: bool) -> None:
    script = Script(text_tokenizer(tmp_path), {b"two": CALL + b"\n" + CALL})
    body = {"messages": [{"role": "user", "content": "two"}], "tools": TOOLS, "max_tokens": 300}
    with running(lambda: scripted_llm(script)) as server:
        for parallel, count in ((True, 2), (None, 2), (False, 1)):
            wanted = {**body, "parallel_tool_calls": parallel}
            answer = server.post(CHAT, wanted).json()["choices"][0] if not stream else None
            told = folded(server.stream(CHAT, wanted)) if answer is None else plain(answer)
            assert (len(told["calls"]), told["content"], told["finish"]) == (count, "", "tool_calls")

"""Guaranteed answers where marks are tokens: letters that spell one end nothing. The words are a script's, and a real
grammar has to allow each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from extras import needs_compiler
from marked import MARKS, MarkedScript, guarded_llm, marked_tokenizer, token
from served import Running, running

pytestmark = needs_compiler

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
CALL, END_CALL, THINK, END_THINK = (token(mark.value) for mark in MARKS)
SPELLED = b"a </think> and <tool_call>\n{ are letters"
ARGUMENTS = b'{"text": "</tool_call> <think> x"}'
WRITE = CALL + b'\n{"name": "write", "arguments": ' + ARGUMENTS + b"}\n" + END_CALL
SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
CALLS = [["write", ARGUMENTS.decode()]]
ANSWERS = {
    b"thought-call": SPELLED + END_THINK + b"\n\n" + WRITE,
    b"twice": THINK + SPELLED + END_THINK + WRITE + b"\n" + WRITE,
    b"thought-format": SPELLED + END_THINK + b'\n{"text": "<tool_call>"}',
    b"early-format": SPELLED[:10] + b'\n{"text": "b"}',
    b"prose": b"so " + SPELLED + b"." + WRITE + b"and " + WRITE,
    b"trigger": b"so " + CALL + b"no",
    b"spelled-call": WRITE.replace(CALL, b"<tool_call>"),
}


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "special"])
def server(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Running]:
    tokenizer = marked_tokenizer(tmp_path_factory.mktemp("marked"), special=request.param)
    with running(lambda: guarded_llm(MarkedScript(tokenizer, ANSWERS))) as made:
        yield made


def told(server: Running, text: str, *, thoughtful: bool = False, strict: bool = False, **fields: Any) -> Any:
    """Thought, content, calls and finish of an answer that is the same whole and streamed."""
    function = {"name": "write", "parameters": SCHEMA, "strict": strict}
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 400, **fields}
    body["chat_template_kwargs"] = {"thoughtful": thoughtful}
    if "response_format" not in fields:
        body["tools"] = [{"type": "function", "function": function}]
    response = server.post(CHAT, body)
    if response.status_code != 200:
        return response.json()["error"]["message"]
    [choice] = response.json()["choices"]
    message = choice["message"]
    calls = [[c["function"]["name"], c["function"]["arguments"]] for c in message.get("tool_calls") or []]
    whole = [message.get("reasoning_content") or "", message["content"] or "", calls, choice["finish_reason"]]
    assert streamed(server, body) == whole
    return whole


def streamed(server: Running, body: dict[str, Any]) -> list[Any]:
    thought, content, calls, finish = "", "", list[list[str]](), None
    for choice in (c for event in server.stream(CHAT, body) for c in event["choices"]):
        delta, finish = choice["delta"], choice["finish_reason"] or finish
        thought += delta.get("reasoning_content") or ""
        content += delta.get("content") or ""
        for call in delta.get("tool_calls", []):
            if "id" in call:
                calls.append([call["function"]["name"], ""])
            calls[call["index"]][1] += call["function"]["arguments"]
    return [thought, content, calls, finish]


def test_a_thought_that_spells_marks_goes_on_before_a_demanded_call(server: Running) -> None:
    spelled = SPELLED.decode()
    begun = told(server, "thought-call", thoughtful=True, tool_choice="required")
    assert begun == [spelled, "", CALLS, "tool_calls"]
    own = told(server, "twice", tool_choice="required")
    assert own == [spelled, "", CALLS + CALLS, "tool_calls"]


def test_a_thought_that_spells_marks_goes_on_before_a_format(server: Running) -> None:
    formatted = {"type": "json_schema", "json_schema": {"name": "text", "schema": SCHEMA}}
    whole = told(server, "thought-format", thoughtful=True, response_format=formatted)
    assert whole == [SPELLED.decode(), '{"text": "<tool_call>"}', [], "stop"]


def test_what_ends_a_thought_by_letters_alone_has_ended_nothing(server: Running) -> None:
    formatted = {"type": "json_schema", "json_schema": {"name": "text", "schema": SCHEMA}}
    error = told(server, "early-format", thoughtful=True, response_format=formatted)
    assert "does not fit the grammar" in error  # an end of the answer, in the midst of the thought


def test_a_demanded_call_begins_with_the_token(server: Running) -> None:
    assert "(output 0) does not fit" in told(server, "spelled-call", tool_choice="required")


def test_prose_beside_a_strict_function_may_spell_marks(server: Running) -> None:
    [_, content, calls, finish] = told(server, "prose", strict=True)
    assert content == "so " + SPELLED.decode() + ".and "
    assert (calls, finish) == (CALLS + CALLS, "tool_calls")
    assert "does not fit the grammar" in told(server, "trigger", strict=True)


def test_messages_read_them_alike(server: Running) -> None:
    tools = [{"name": "write", "input_schema": SCHEMA}]
    said = {"messages": [{"role": "user", "content": "twice"}], "max_tokens": 400}
    body = said | {"tools": tools, "tool_choice": {"type": "any", "disable_parallel_tool_use": False}}
    content = server.post(MESSAGES, body).json()["content"]
    assert [block["type"] for block in content] == ["thinking", "tool_use", "tool_use"]
    assert content[0]["thinking"] == SPELLED.decode()
    assert content[1]["input"] == json.loads(ARGUMENTS)

"""Demanded tool calls: the model knows nothing, so all form comes from the grammar. S1 of the serving cases."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from extras import needs_compiler
from marked import MarkedScript, guarded_llm, token, tokenizer_with
from served import Running, dummy_llm, running
from test_tools import folded, plain

pytestmark = needs_compiler

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
TEXT_SCHEMA = {
    "type": "object",
    "properties": {"text": {"type": "string", "pattern": "^[a-z ]{30}$"}},
    "required": ["text"],
    "additionalProperties": False,
}
DIGIT = {"type": "object", "properties": {"n": {"enum": [1, 2, 3]}}, "required": ["n"], "additionalProperties": False}


def tool(name: str, schema: Any, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": schema, **more}}


WRITE, PICK = tool("write", TEXT_SCHEMA), tool("pick", DIGIT)
NAMED = {"type": "function", "function": {"name": "write"}}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("tiny")
    with running(lambda: dummy_llm(folder, kv_dtype="float32")) as made:
        made.complete("warm", max_tokens=2, structured_outputs={"choice": ["a"]})  # loads the compiler
        yield made


def body(**fields: Any) -> dict[str, Any]:
    said = [{"role": "user", "content": "go"}]
    known = {"messages": said, "tools": [WRITE, PICK], "max_tokens": 400, "seed": 3, "parallel_tool_calls": False}
    return known | fields


WORDS = "lorem ipsum "
LONG = {"text": {"type": "string", "minLength": 200}}
WRITE_LONG = tool("write", {"type": "object", "properties": LONG, "required": ["text"], "additionalProperties": False})
BEGIN, END = b'<tool_call>\n{"name": "write", "arguments": ', b"}\n</tool_call>"
ARGUMENTS = b'{"text": "' + WORDS.encode() + 19 * token(WORDS) + b'"}'  # first in letters, then in words
NEEDED = len(BEGIN + WORDS.encode() + END) + len('{"text": ""}') + 19 + 1  # with the token that ends the answer


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Says the call, and a grammar has to allow each of its tokens."""
    tokenizer = tokenizer_with(tmp_path_factory.mktemp("writer"), [WORDS], special=False)
    with running(lambda: guarded_llm(MarkedScript(tokenizer, {b"go": BEGIN + ARGUMENTS + END}))) as made:
        made.complete("warm", max_tokens=2, structured_outputs={"choice": ["lo"]})  # loads the compiler
        yield made


@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
def test_s1_a_forced_call_cut_anywhere(writer: Running, choice: Any) -> None:
    """After each of its tokens, in turn whole, streamed and both. What was begun is told as far as it came."""
    arguments = json.dumps({"text": 20 * WORDS})
    known = 0  # letters of the arguments: never fewer with more tokens
    for limit in range(1, NEEDED + 1):
        wanted, told = body(tools=[WRITE_LONG, PICK], tool_choice=choice, max_tokens=limit), []
        if limit % 3 != 1:
            told.append(plain(writer.post(CHAT, wanted).json()["choices"][0]))
        if limit % 3 != 2:
            told.append(folded(writer.stream(CHAT, wanted)))
        assert told[0] == told[-1]
        assert (told[0]["content"], told[0]["finish"]) == ("", "length" if limit < NEEDED else "tool_calls")
        for name, begun in told[0]["calls"]:
            assert (name, begun) == ("write", arguments[: len(begun)])
            assert len(begun) >= known
            known = len(begun)
    assert known == len(arguments)


@pytest.mark.parametrize("limit", [20, len(BEGIN) + 30, NEEDED - len(END) - 1, NEEDED - 1, NEEDED])
def test_s1_in_the_other_protocols(writer: Running, limit: int) -> None:
    parameters, whole = WRITE_LONG["function"]["parameters"], {"text": 20 * WORDS}
    said = {"messages": [{"role": "user", "content": "go"}], "max_tokens": limit}
    tools = [{"name": "write", "input_schema": parameters}]
    message = writer.post(MESSAGES, said | {"tools": tools, "tool_choice": {"type": "any"}}).json()
    assert message["stop_reason"] == ("tool_use" if limit == NEEDED else "max_tokens")
    assert all(block["type"] == "tool_use" or not block["text"] for block in message["content"])
    flat = [{"type": "function", "name": "write", "parameters": parameters}]
    asked = {"input": "go", "max_output_tokens": limit, "tools": flat, "tool_choice": "required"}
    answer = writer.post(RESPONSES, asked).json()
    assert answer["status"] == ("completed" if limit == NEEDED else "incomplete")
    calls = [item for item in answer["output"] if item["type"] == "function_call"]
    closed = limit >= NEEDED - 1  # all but the end of the answer
    assert [item["status"] for item in calls] == (["completed"] if closed else ["incomplete"][: limit > len(BEGIN)])
    if closed:
        assert [block["input"] for block in message["content"]] == [whole]
        assert [json.loads(item["arguments"]) for item in calls] == [whole]


def test_arguments_stream_as_they_are_drawn(tiny: Running) -> None:
    events = tiny.stream(CHAT, body(tool_choice=NAMED))
    calls = [c["delta"]["tool_calls"] for e in events for c in e["choices"] if "tool_calls" in c["delta"]]
    assert len(calls) > 10
    assert "id" in calls[0][0]
    assert all("id" not in later[0] for later in calls[1:])


@pytest.mark.parametrize("seed", range(3))
def test_required_calls_any_function_and_only_them(tiny: Running, seed: int) -> None:
    [choice] = tiny.post(CHAT, body(tool_choice="required", seed=seed)).json()["choices"]
    told = plain(choice)
    [(name, arguments)] = told["calls"]
    assert (told["content"], told["finish"]) == ("", "tool_calls")
    value = json.loads(arguments)
    assert value["n"] in (1, 2, 3) if name == "pick" else len(value["text"]) == 30


def test_several_calls_where_they_are_allowed(tiny: Running) -> None:
    wanted = body(tools=[PICK], tool_choice="required", parallel_tool_calls=True, max_tokens=700)
    whole = plain(tiny.post(CHAT, wanted).json()["choices"][0])
    assert folded(tiny.stream(CHAT, wanted)) == whole
    complete = whole["calls"] if whole["finish"] == "tool_calls" else whole["calls"][:-1]
    assert complete
    assert all(json.loads(arguments)["n"] in (1, 2, 3) for _, arguments in complete)


def test_forced_calls_in_the_other_protocols(tiny: Running) -> None:
    said = {"messages": [{"role": "user", "content": "go"}], "max_tokens": 400}
    tools = [{"name": "write", "input_schema": TEXT_SCHEMA}]
    choice = {"type": "tool", "name": "write"}
    message = tiny.post(MESSAGES, {**said, "tools": tools, "tool_choice": choice}).json()
    [use] = message["content"]
    assert (message["stop_reason"], use["type"]) == ("tool_use", "tool_use")
    assert len(use["input"]["text"]) == 30
    flat = [{"type": "function", "name": "write", "parameters": TEXT_SCHEMA}]
    asked = {"input": "go", "tools": flat, "tool_choice": {"type": "function", "name": "write"}}
    [item] = tiny.post(RESPONSES, asked | {"max_output_tokens": 400}).json()["output"]
    assert (item["type"], item["status"]) == ("function_call", "completed")
    assert len(json.loads(item["arguments"])["text"]) == 30
    [item] = tiny.post(RESPONSES, asked | {"max_output_tokens": 60}).json()["output"]
    assert item["status"] == "incomplete"


def test_a_strict_function_leaves_text_free(tiny: Running) -> None:
    strict = tool("write", TEXT_SCHEMA, strict=True)
    [choice] = tiny.post(CHAT, body(tools=[strict], max_tokens=40)).json()["choices"]
    assert choice["finish_reason"] in ("length", "stop")
    assert choice["message"]["content"]


def test_a_format_or_a_call(tiny: Running) -> None:
    wanted = body(tools=[PICK], structured_outputs={"choice": ["yes", "no"]})
    [choice] = tiny.post(CHAT, wanted).json()["choices"]
    told = plain(choice)
    assert told["content"] in ("yes", "no") or [name for name, _ in told["calls"]] == ["pick"]


def test_a_schema_that_is_none_is_refused(tiny: Running) -> None:
    bad = tool("write", {"type": "strin"})
    response = tiny.post(CHAT, body(tools=[bad], tool_choice="required"))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "tools"
    assert tiny.post(CHAT, body(tool_choice="none", max_tokens=1)).status_code == 200

"""Demanded tool calls: the model knows nothing, so all form comes from the grammar. S1 of the serving cases."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest
from served import Running, dummy_llm, running
from test_tools import folded, plain

if find_spec("xgrammar") is None:
    pytest.skip("needs the grammar extra", allow_module_level=True)

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


def test_s1_a_forced_call_cut_anywhere(tiny: Running) -> None:
    full = tiny.post(CHAT, body(tool_choice=NAMED)).json()
    needed = full["usage"]["completion_tokens"]
    assert full["choices"][0]["finish_reason"] == "tool_calls"
    for limit in range(1, needed + 1, 3 if needed > 60 else 1):
        wanted = body(tool_choice=NAMED, max_tokens=limit)
        whole = plain(tiny.post(CHAT, wanted).json()["choices"][0])
        assert folded(tiny.stream(CHAT, wanted)) == whole
        assert whole["content"] == ""
        if whole["finish"] == "tool_calls":
            assert [name for name, _ in whole["calls"]] == ["write"]
            assert len(json.loads(whole["calls"][0][1])["text"]) == 30
        else:
            assert whole["finish"] == "length"
            assert limit < needed
    last = plain(tiny.post(CHAT, body(tool_choice=NAMED, max_tokens=needed)).json()["choices"][0])
    assert last["finish"] == "tool_calls"


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

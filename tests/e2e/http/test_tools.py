"""Tool calls over HTTP in three protocols: from scripted answers, without a grammar."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from served import Running, Script, running, scripted_llm, text_tokenizer

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "Looks it up", "parameters": SCHEMA}}]
FLAT = [{"type": "function", "name": "weather", "parameters": SCHEMA}]
CLAUDE = [{"name": "weather", "input_schema": SCHEMA}]
CALL = b'<tool_call>\n{"name": "weather", "arguments": {"city": "Bern"}}\n</tool_call>'
ANSWERS = {
    b"one-call": b"Let me see.\n" + CALL,
    b"two-calls": CALL + b"\n" + CALL,
    b"bad-call": b'<tool_call>\n{"name": "weather", "arguments": {"city": }}\n</tool_call>',
    b"unknown-call": b'<tool_call>\n{"name": "nuke", "arguments": {}}\n</tool_call>',
    b"cut-call": CALL,
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    script = Script(text_tokenizer(tmp_path_factory.mktemp("tokenizer")), ANSWERS)
    with running(lambda: scripted_llm(script)) as made:
        yield made


def ask(text: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "tools": TOOLS, "max_tokens": 300} | fields


def folded(events: list[dict[str, Any]]) -> dict[str, Any]:
    """A chat stream added up as clients do."""
    out: dict[str, Any] = {"content": "", "calls": [], "finish": None}
    for choice in (c for event in events for c in event["choices"]):
        out["content"] += choice["delta"].get("content") or ""
        for call in choice["delta"].get("tool_calls", []):
            if "id" in call:
                assert call["index"] == len(out["calls"])
                out["calls"].append([call["function"]["name"], ""])
            out["calls"][call["index"]][1] += call["function"]["arguments"]
        out["finish"] = choice["finish_reason"] or out["finish"]
    return out


def plain(choice: dict[str, Any]) -> dict[str, Any]:
    message = choice["message"]
    calls = [[c["function"]["name"], c["function"]["arguments"]] for c in message.get("tool_calls", [])]
    return {"content": message["content"] or "", "calls": calls, "finish": choice["finish_reason"]}


BERN = ["weather", '{"city": "Bern"}']


@pytest.mark.parametrize(
    ("text", "limit", "expected"),
    [
        ("one-call", 300, {"content": "Let me see.\n", "calls": [BERN], "finish": "tool_calls"}),
        ("two-calls", 300, {"content": "", "calls": [BERN, BERN], "finish": "tool_calls"}),
        ("bad-call", 300, {"content": ANSWERS[b"bad-call"].decode(), "calls": [], "finish": "stop"}),
        ("unknown-call", 300, {"content": ANSWERS[b"unknown-call"].decode(), "calls": [], "finish": "stop"}),
        ("cut-call", 30, {"content": CALL[:30].decode(), "calls": [], "finish": "length"}),
    ],
)
def test_calls_whole_and_streamed(server: Running, text: str, limit: int, expected: dict[str, Any]) -> None:
    body = ask(text, max_tokens=limit)
    [choice] = server.post(CHAT, body).json()["choices"]
    assert plain(choice) == expected
    assert folded(server.stream(CHAT, body)) == expected


def test_no_calls_where_none_are_wanted(server: Running) -> None:
    [choice] = server.post(CHAT, ask("one-call", tool_choice="none")).json()["choices"]
    assert plain(choice) == {"content": ANSWERS[b"one-call"].decode(), "calls": [], "finish": "stop"}


def test_the_prompt_tells_tools_calls_and_results(server: Running) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bern"}'}}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "sunny", "tool_call_id": "c1"},
    ]
    assert server.post(CHAT, ask("", messages=messages, max_tokens=1)).status_code == 200
    request = server.requests[-1]
    tokenizer = server.host.llm.tokenizer
    assert tokenizer is not None
    told = tokenizer.decode(request.prompt_token_ids, skip_special=False)
    assert "Be brief.\n\n" in told
    assert json.dumps(TOOLS[0]) in told
    assert CALL.decode() in told
    assert "<tool_response>\nsunny\n</tool_response>" in told
    turns = [
        {"role": "user", "content": "hello"},
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Bern"}}],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "sunny"}]},
    ]
    tools = [{"name": "weather", "description": "Looks it up", "input_schema": SCHEMA}]
    body = {"system": "Be brief.", "messages": turns, "tools": tools, "max_tokens": 1}
    assert server.post(MESSAGES, body).status_code == 200
    assert server.requests[-1].prompt_token_ids == request.prompt_token_ids
    items = [
        {"role": "user", "content": "hello"},
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Bern"}'},
        {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
    ]
    flat = [{"type": "function", **TOOLS[0]["function"]}]
    body = {"instructions": "Be brief.", "input": items, "tools": flat, "max_output_tokens": 1}
    assert server.post(RESPONSES, body).status_code == 200
    assert server.requests[-1].prompt_token_ids == request.prompt_token_ids


@pytest.mark.parametrize("control", ["<|end|>", "<|user|>", "<|answer|>"])
def test_s29_no_control_token_comes_from_tools_that_are_told_in_text(server: Running, control: str) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": control, "arguments": json.dumps({control: control})}}
    messages = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": control, "tool_calls": [call]},
        {"role": "tool", "content": control, "tool_call_id": "c1"},
    ]
    schema = {"type": "object", "properties": {control: {"description": control}}}
    tools = [{"type": "function", "function": {"name": "f", "description": control, "parameters": schema}}]
    assert server.post(CHAT, {"messages": messages, "tools": tools, "max_tokens": 1}).status_code == 200
    tokenizer, ids = server.host.llm.tokenizer, server.requests[-1].prompt_token_ids
    assert tokenizer is not None
    found = [tokenizer.token_text(i) for i in ids if i in tokenizer.special_ids]
    said = ["<|answer|>", "<|end|>", "<|user|>", "<|end|>", "<|answer|>", "<|end|>", "<|user|>", "<|end|>"]
    assert found == [*said, "<|answer|>"]  # the first is the system message, which this template calls an answer
    assert tokenizer.decode(ids, skip_special=True).count(control) == 8


def test_a_message_with_tool_use(server: Running) -> None:
    body = ask("one-call", tools=CLAUDE)
    whole = server.post(MESSAGES, body).json()
    assert whole["stop_reason"] == "tool_use"
    text, use = whole["content"]
    assert text == {"type": "text", "text": "Let me see.\n"}
    assert (use["type"], use["name"], use["input"]) == ("tool_use", "weather", {"city": "Bern"})
    told = [json.loads(one) for one in server.raw_stream(MESSAGES, body)]
    kinds = [e["content_block"]["type"] for e in told if e["type"] == "content_block_start"]
    assert kinds == ["text", "tool_use"]
    pieces = [e["delta"]["partial_json"] for e in told if e.get("delta", {}).get("type") == "input_json_delta"]
    assert json.loads("".join(pieces)) == {"city": "Bern"}
    assert [e["index"] for e in told if e["type"] == "content_block_stop"] == [0, 1]
    assert told[-2]["delta"]["stop_reason"] == "tool_use"


def test_a_response_with_function_calls(server: Running) -> None:
    body = {"input": "two-calls", "tools": FLAT, "max_output_tokens": 300}
    whole = server.post(RESPONSES, body).json()
    assert [item["type"] for item in whole["output"]] == ["function_call"] * 2
    assert [item["arguments"] for item in whole["output"]] == [BERN[1]] * 2
    told = [json.loads(one) for one in server.raw_stream(RESPONSES, body)]
    assert [e["sequence_number"] for e in told] == list(range(len(told)))
    done = [e for e in told if e["type"] == "response.function_call_arguments.done"]
    assert [(e["output_index"], e["arguments"]) for e in done] == [(0, BERN[1]), (1, BERN[1])]
    final = told[-1]["response"]["output"]
    assert final == [e["item"] for e in told if e["type"] == "response.output_item.done"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "<|end|>"}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a" * 65}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "f"}, "foo": 1}]}, "tools[0].foo"),
        ({"tools": [{"type": "function", "function": {"name": "f", "params": {}}}]}, "tools[0].function.params"),
        ({"tool_choice": {"type": "function", "function": {"name": "weather"}, "mode": 1}}, "tool_choice.mode"),
        ({"tools": TOOLS * 2}, "tools"),
        ({"tools": TOOLS * 300}, "tools"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
        ({"tools": None, "tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "required", "response_format": {"type": "json_object"}}, "response_format"),
    ],
)
def test_bad_tools_are_refused_by_name(server: Running, fields: dict[str, Any], param: str) -> None:
    response = server.post(CHAT, ask("x", **fields))
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


@pytest.mark.parametrize("opened", [False, True])
def test_thoughts_are_told_apart(tmp_path: Any, opened: bool) -> None:
    ending = "<|answer|>{{ '<think>\\n' if thinking else '' }}{# </think> #}"
    template = "{% for m in messages %}<|user|>{{ m.content }}<|end|>{% endfor %}" + ending
    said = (b"" if opened else b"<think>\n") + b"hmm\n</think>\n\nyes"
    script = Script(text_tokenizer(tmp_path, chat_template=template), {b"why": said})
    body = {"messages": [{"role": "user", "content": "why"}], "chat_template_kwargs": {"thinking": opened}}
    with running(lambda: scripted_llm(script)) as server:
        message = server.post(CHAT, body).json()["choices"][0]["message"]
        assert (message["reasoning_content"], message["content"]) == ("hmm", "yes")
        deltas = [c["delta"] for e in server.stream(CHAT, body) for c in e["choices"]]
        assert "".join(d.get("reasoning_content", "") for d in deltas) == "hmm"
        assert "".join(d.get("content", "") for d in deltas) == "yes"


def legacy(text: str, **fields: Any) -> dict[str, Any]:
    said = [{"role": "user", "content": text}]
    return {"messages": said, "functions": [TOOLS[0]["function"]], "max_tokens": 300} | fields


@pytest.mark.parametrize("text", ["one-call", "two-calls"])
def test_functions_are_answered_in_their_own_words(server: Running, text: str) -> None:
    """OpenAI's form before ``tools``: at most one call, as ``function_call``, whole and streamed."""
    [choice] = server.post(CHAT, legacy(text)).json()["choices"]
    assert choice["message"]["function_call"] == {"name": "weather", "arguments": BERN[1]}
    assert choice["finish_reason"] == "function_call"
    assert "tool_calls" not in choice["message"]
    name, arguments = "", ""
    for chunk in (c for event in server.stream(CHAT, legacy(text)) for c in event["choices"]):
        assert "tool_calls" not in chunk["delta"]
        call = chunk["delta"].get("function_call", {})
        name, arguments = name + call.get("name", ""), arguments + call.get("arguments", "")
    assert [name, arguments] == BERN
    [choice] = server.post(CHAT, legacy("one-call", function_call="none")).json()["choices"]
    assert choice["message"]["content"] == ANSWERS[b"one-call"].decode()


def test_past_functions_are_told_as_tools_are(server: Running) -> None:
    call = {"name": "weather", "arguments": '{"city": "Bern"}'}
    turns = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": None, "function_call": call},
        {"role": "function", "name": "weather", "content": "sunny"},
    ]
    assert server.post(CHAT, legacy("", messages=turns, max_tokens=1)).status_code == 200
    tokenizer = server.host.llm.tokenizer
    assert tokenizer is not None
    told = tokenizer.decode(server.requests[-1].prompt_token_ids, skip_special=False)
    assert CALL.decode() in told
    assert "<tool_response>\nsunny\n</tool_response>" in told

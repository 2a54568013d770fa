"""Messages and Responses: the same engine in two more languages."""

from __future__ import annotations

import json
from typing import Any

import pytest
from served import Running, Script, running, scripted_llm

MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"


def events(server: Running, route: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Every event, its name checked against its data."""
    with server.http.stream("POST", route, json={**body, "stream": True}) as response:
        assert response.status_code == 200, response.read()
        blocks = response.read().decode().strip().split("\n\n")
    found = []
    for block in blocks:
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def message(text: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 50} | fields


def test_a_message_whole_and_streamed(scripted: Running) -> None:
    whole = scripted.post(MESSAGES, message("stop-whole", system="be brief")).json()
    assert whole["content"] == [{"type": "text", "text": "abcDEFGHIJxyz"}]
    assert (whole["type"], whole["role"], whole["stop_reason"]) == ("message", "assistant", "end_turn")
    assert whole["usage"]["output_tokens"] == 14
    told = events(scripted, MESSAGES, message("stop-whole", system="be brief"))
    assert [e["type"] for e in told[:3]] == ["message_start", "ping", "content_block_start"]
    assert [e["type"] for e in told[-3:]] == ["content_block_stop", "message_delta", "message_stop"]
    assert "".join(e["delta"]["text"] for e in told if e["type"] == "content_block_delta") == "abcDEFGHIJxyz"
    assert told[-2]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}


@pytest.mark.parametrize(
    ("fields", "reason", "sequence"),
    [({"stop_sequences": ["DEF"]}, "stop_sequence", "DEF"), ({"max_tokens": 2}, "max_tokens", None)],
)
def test_why_a_message_ended(scripted: Running, fields: Any, reason: str, sequence: str | None) -> None:
    whole = scripted.post(MESSAGES, message("stop-whole", **fields)).json()
    assert (whole["stop_reason"], whole["stop_sequence"]) == (reason, sequence)


@pytest.mark.parametrize(
    ("route", "body"),
    [
        (MESSAGES, message("x")),
        (RESPONSES, {"input": "x", "max_output_tokens": 4}),
        ("/v1/completions", {"prompt": "x", "max_tokens": 4}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4}),
    ],
)
def test_the_class_of_what_is_stored_is_told_in_every_language(
    scripted: Running, route: str, body: dict[str, Any]
) -> None:
    for fields, expected in (({}, "chat"), ({"kv_class": "agent"}, "agent"), ({"kv_class": None}, "chat")):
        assert scripted.post(route, body | fields).status_code == 200
        assert scripted.requests[-1].kv_class == expected
    refused = scripted.post(route, body | {"kv_class": "robot"})
    assert refused.status_code == 400
    assert "kv_class" in refused.text


def test_counting_equals_the_usage(scripted: Running) -> None:
    body = {"messages": [{"role": "user", "content": [{"type": "text", "text": "counted"}]}], "system": "sys"}
    count = scripted.post(f"{MESSAGES}/count_tokens", body).json()["input_tokens"]
    usage = scripted.post(MESSAGES, {**body, "max_tokens": 1}).json()["usage"]
    assert count == usage["input_tokens"] + usage["cache_read_input_tokens"]


@pytest.mark.parametrize(
    ("body", "status", "kind", "words"),
    [
        ({"messages": []}, 400, "invalid_request_error", "max_tokens"),
        (message("x", max_tokens=0), 400, "invalid_request_error", "max_tokens"),
        (message("x", model="other"), 404, "not_found_error", "other"),
        (message("x", messages=[]), 400, "invalid_request_error", "messages"),
        (message("x", tools=[{"name": 1}]), 400, "invalid_request_error", "tools[0].name"),
        (message("x", tool_choice={"type": ["any"]}), 400, "invalid_request_error", "tool_choice.type"),
        (message("x", stop_sequences=[""]), 400, "invalid_request_error", "stop_sequences"),
        (message("x", stop_sequences=["a"] * 65), 400, "invalid_request_error", "stop_sequences"),
        (message("x", output_config={"tone": "dry"}), 400, "invalid_request_error", "output_config.tone"),
        (message("x", output_config={"effort": "much"}), 400, "invalid_request_error", "output_config.effort"),
        (message("x", output_config={"format": {}}), 400, "invalid_request_error", "output_config.format.type"),
        (message("x", output_config="low"), 400, "invalid_request_error", "output_config"),
        (message("x", thinking={"type": "always"}), 400, "invalid_request_error", "thinking.type"),
        (message("x", thinking={"type": "enabled", "depth": 3}), 400, "invalid_request_error", "thinking.depth"),
        (
            message("x", messages=[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]),
            400,
            "invalid_request_error",
            "messages",
        ),
        (
            message("x", messages=[{"role": "user", "content": [{"type": "image"}]}]),
            400,
            "invalid_request_error",
            "image",
        ),
    ],
)
def test_refusals_of_messages_have_their_own_shape(
    scripted: Running, body: Any, status: int, kind: str, words: str
) -> None:
    response = scripted.post(MESSAGES, body)
    assert response.status_code == status
    told = response.json()
    assert (told["type"], told["error"]["type"]) == ("error", kind)
    assert words in told["error"]["message"]


IMAGE, RESULT = {"type": "image"}, {"type": "tool_result", "tool_use_id": "a", "content": "r"}


@pytest.mark.parametrize(
    ("content", "place"),
    [
        ([IMAGE], "messages[0].content[0]:"),
        ([{"type": "thinking"}, RESULT, {"type": "text", "text": "t"}, IMAGE], "messages[0].content[3]:"),
        ([{**RESULT, "content": [{"type": "text", "text": "t"}, IMAGE]}], "messages[0].content[0].content[1]:"),
    ],
)
def test_refusals_of_messages_name_the_place_in_the_body(scripted: Running, content: Any, place: str) -> None:
    turns = [{"role": "user", "content": content}]
    refused = scripted.post(MESSAGES, message("", system="s", messages=turns))
    assert (refused.status_code, refused.json()["error"]["message"].split(" ")[0]) == (400, place)
    refused = scripted.post(MESSAGES, message("x", system=[{"type": "text", "text": "t"}, IMAGE]))
    assert refused.json()["error"]["message"].startswith("system[1]: ")


def test_a_response_whole_and_streamed(scripted: Running) -> None:
    body = {"input": "stop-whole", "instructions": "be brief", "max_output_tokens": 50}
    whole = scripted.post(RESPONSES, body).json()
    assert (whole["object"], whole["status"]) == ("response", "completed")
    assert whole["output"][0]["content"][0]["text"] == "abcDEFGHIJxyz"
    told = events(scripted, RESPONSES, body)
    assert [e["sequence_number"] for e in told] == list(range(len(told)))
    assert "".join(e["delta"] for e in told if e["type"] == "response.output_text.delta") == "abcDEFGHIJxyz"
    last = told[-1]
    assert last["type"] == "response.completed"
    same = {"usage", "id", "created_at", "output"}
    assert {k: v for k, v in last["response"].items() if k not in same} == {
        k: v for k, v in whole.items() if k not in same
    }
    assert last["response"]["output"][0]["content"] == whole["output"][0]["content"]
    assert "usage" not in told[0]["response"]  # an object in OpenAI's specification, never null
    assert last["response"]["usage"]["output_tokens"] == whole["usage"]["output_tokens"]


def test_a_response_that_was_cut_says_so(scripted: Running) -> None:
    items = [{"role": "developer", "content": "x"}, {"role": "user", "content": [{"type": "input_text", "text": "y"}]}]
    whole = scripted.post(RESPONSES, {"input": items, "max_output_tokens": 3}).json()
    assert (whole["status"], whole["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert whole["usage"]["output_tokens"] == 3
    assert "user" not in whole  # a text in OpenAI's specification, never null
    assert scripted.post(RESPONSES, {"input": "y", "max_output_tokens": 3, "user": "me"}).json()["user"] == "me"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"conversation": "c"}, "conversation"),
        ({"truncation": "auto"}, "truncation"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"input": [{"type": "function_call"}]}, "input[0].call_id"),
        ({"input": [{"type": "item_reference"}]}, "input[0]"),
        ({"input": [{"role": "user"}], "instructions": "x"}, "input[0].content"),
        ({"input": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "input[0].content[0]"),
        (
            {"input": [{"type": "function_call_output", "call_id": "a", "output": [{"type": "input_image"}]}]},
            "input[0].output[0]",
        ),
        ({"nonsense": 1}, "nonsense"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"reasoning": {"effort": "much"}}, "reasoning.effort"),
        ({"reasoning": {"summary": "detailed"}}, "reasoning.summary"),
        ({"reasoning": {"budget": 5}}, "reasoning.budget"),
        ({"reasoning": "low"}, "reasoning"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"text": {"colour": "red"}}, "text.colour"),
        ({"include": ["everything"]}, "include[0]"),
        ({"top_logprobs": -1}, "top_logprobs"),
        ({"top_logprobs": 5, "tools": [{"type": "function", "name": "f"}]}, "top_logprobs"),
        ({"include": ["message.output_text.logprobs"], "tools": [{"type": "function", "name": "f"}]}, "include"),
        ({"stream_options": {"include_obfuscation": True}}, "stream_options"),
    ],
)
def test_refusals_of_responses_name_the_field(scripted: Running, fields: Any, param: str) -> None:
    response = scripted.post(RESPONSES, {"input": "x", **fields})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


@pytest.mark.parametrize("wish", [{"top_logprobs": 2}, {"include": ["message.output_text.logprobs"]}])
def test_a_response_tells_the_logprobs_that_chat_does(tiny: Running, wish: dict[str, Any]) -> None:
    body = {"input": "x", "max_output_tokens": 12, "temperature": 0, **wish}
    chat = tiny.chat("x", max_tokens=12, temperature=0, logprobs=True, top_logprobs=wish.get("top_logprobs", 0))
    wanted = chat.json()["choices"][0]["logprobs"]["content"]
    whole = tiny.post(RESPONSES, body).json()
    assert whole["output"][0]["content"][0]["logprobs"] == wanted
    assert whole["top_logprobs"] == wish.get("top_logprobs", 0)
    told = events(tiny, RESPONSES, body)
    grown = [row for e in told if e["type"] == "response.output_text.delta" for row in e["logprobs"]]
    assert grown == wanted[: len(grown)]
    assert len(grown) >= 1
    done = [e["logprobs"] for e in told if e["type"] == "response.output_text.done"]
    assert done == [wanted] == [told[-1]["response"]["output"][0]["content"][0]["logprobs"]]


@pytest.mark.parametrize("include", ["reasoning.encrypted_content", "file_search_call.results"])
def test_what_a_response_has_nothing_of_may_be_asked_for(scripted: Running, include: str) -> None:
    body = {"input": "x", "max_output_tokens": 2, "include": [include], "reasoning": {"summary": "auto"}}
    assert scripted.post(RESPONSES, body).status_code == 200


@pytest.mark.parametrize(("route", "body"), [(MESSAGES, message("x")), (RESPONSES, {"input": "x"})])
def test_an_engine_fault_ends_both_streams_with_their_error_event(script: Script, route: str, body: Any) -> None:
    with running(lambda: scripted_llm(script, fail_steps={3})) as server:
        last = events(server, route, body)[-1]
    error = last["error"] if route == MESSAGES else last["response"]["error"]
    assert last["type"] == ("error" if route == MESSAGES else "response.failed")
    assert "scripted failure" in error["message"]
    with running(lambda: scripted_llm(script, fail_steps={3})) as server:
        assert server.post(route, body).status_code == 500

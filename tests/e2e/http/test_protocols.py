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
        ({"nonsense": 1}, "nonsense"),
    ],
)
def test_refusals_of_responses_name_the_field(scripted: Running, fields: Any, param: str) -> None:
    response = scripted.post(RESPONSES, {"input": "x", **fields})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


@pytest.mark.parametrize(("route", "body"), [(MESSAGES, message("x")), (RESPONSES, {"input": "x"})])
def test_an_engine_fault_ends_both_streams_with_their_error_event(script: Script, route: str, body: Any) -> None:
    with running(lambda: scripted_llm(script, fail_steps={3})) as server:
        last = events(server, route, body)[-1]
    error = last["error"] if route == MESSAGES else last["response"]["error"]
    assert last["type"] == ("error" if route == MESSAGES else "response.failed")
    assert "scripted failure" in error["message"]
    with running(lambda: scripted_llm(script, fail_steps={3})) as server:
        assert server.post(route, body).status_code == 500

"""Refusals of fields and values say what would be right; what clients replay in messages stays free."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.api.protocol.chat_body import ChatBody
from headrace.api.protocol.decode import decode
from headrace.api.protocol.messages_body import MessagesBody
from headrace.api.protocol.responses_body import ResponsesBody
from headrace.api.protocol.structure import from_format
from headrace.api.protocol.tools import anthropic_tools, openai_tools
from headrace.contract.errors import InvalidRequest

SCHEMA = {"type": "object"}


@pytest.mark.parametrize(
    ("schema", "body", "told"),
    [
        (ChatBody, {"temprature": 1}, "temprature: unknown field; did you mean temperature?"),
        (ChatBody, {"prompt": "x"}, "prompt: unknown field; did you mean messages?"),
        (ResponsesBody, {"max_tokens": 1}, "max_tokens: unknown field; did you mean max_output_tokens?"),
        (MessagesBody, {"stop": "x"}, "stop: unknown field; did you mean stop_sequences?"),
        (ResponsesBody, {"structured_outputs": {}}, "text.format"),
        (MessagesBody, {"structured_outputs": {}}, "output_config.format"),
        (ChatBody, {"messages": [{"role": "usr"}]}, "messages[0].role: must be one of assistant, developer, "),
        (
            MessagesBody,
            {"thinking": {"type": "enabld"}},
            "thinking.type: must be one of adaptive, disabled, enabled, got",
        ),
        (MessagesBody, {"thinking": {"budget": 1}}, "thinking.budget: unknown field; did you mean budget_tokens?"),
        (ChatBody, {"kv_class": "foo"}, "kv_class: must be one of agent, chat, got 'foo'"),
    ],
)
def test_a_refused_body_says_what_would_be_right(schema: Any, body: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        decode(json.dumps(body).encode(), schema)
    assert told in str(refusal.value)


def test_messages_may_hold_fields_of_other_servers() -> None:
    part = {"type": "text", "text": "a", "annotations": [], "cache_control": None}
    message = {"role": "user", "content": [part], "refusal": None, "provider_fields": {"a": 1}}
    assert decode(json.dumps({"messages": [message]}).encode(), ChatBody).messages[0].role == "user"


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ({"type": "json_object", "schema": SCHEMA}, "f.schema"),
        ({"type": "text", "strict": True}, "f.strict"),
        ({"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA, "stric": True}}, "f.json_schema.stric"),
        ({"type": "json_schema", "json_schema": {"schema": SCHEMA}, "strict": True}, "f.strict"),
        ({"type": "json_schema", "schema": SCHEMA, "shema": 1}, "f.shema"),
    ],
)
def test_a_format_holds_what_it_may(value: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        from_format(value, "f")
    assert refusal.value.field == field


def test_what_apis_know_beside_a_tool_is_taken() -> None:
    labels = {"cache_control": {"type": "ephemeral"}, "defer_loading": False}
    [claude] = anthropic_tools([{"name": "a" * 128, "input_schema": SCHEMA, "strict": True, **labels}], None).functions
    flat = {"type": "function", "name": "a-b_C1", "parameters": SCHEMA, "strict": None, **labels}
    [function] = openai_tools([flat], {"type": "function", "name": "a-b_C1"}, None, nested=False).functions
    assert (claude.parameters, function.parameters) == (SCHEMA, SCHEMA)


def test_another_protocols_spelling_of_a_tool_is_told() -> None:
    with pytest.raises(InvalidRequest, match="did you mean input_schema") as refusal:
        anthropic_tools([{"name": "a", "parameters": SCHEMA}], None)
    assert refusal.value.field == "tools[0].parameters"
    with pytest.raises(InvalidRequest, match="did you mean parameters") as refusal:
        openai_tools([{"type": "function", "name": "a", "input_schema": SCHEMA}], None, None, nested=False)
    assert refusal.value.field == "tools[0].input_schema"

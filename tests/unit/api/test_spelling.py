"""A body with a slip is told what it may have meant, in every protocol."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.api.protocol.chat_body import ChatBody
from headrace.api.protocol.decode import decode
from headrace.api.protocol.messages_body import MessagesBody
from headrace.api.protocol.responses_body import ResponsesBody
from headrace.api.protocol.text_body import TextBody
from headrace.contract.errors import InvalidRequest

SAID = [{"role": "user", "content": "x"}]
CHAT: dict[str, Any] = {"messages": SAID}
MESSAGES: dict[str, Any] = {"messages": SAID, "max_tokens": 5}


@pytest.mark.parametrize(
    ("schema", "body", "words"),
    [
        (ChatBody, CHAT | {"temprature": 1}, "temprature: unknown field; did you mean temperature?"),
        (ChatBody, CHAT | {"prompt": "x"}, "prompt: unknown field; did you mean messages?"),
        (ChatBody, CHAT | {"max_token": 5}, "max_token: unknown field; did you mean max_tokens"),
        (ChatBody, CHAT | {"guided_regex": "x"}, "this server has it as structured_outputs.regex"),
        (ChatBody, CHAT | {"xyz": 1}, "xyz: unknown field"),
        (
            ChatBody,
            {"messages": [{"role": "usr", "content": "x"}]},
            "messages[0].role: must be one of ",
        ),
        (ChatBody, CHAT | {"kv_class": "foo"}, "kv_class: must be one of agent, chat, got 'foo'"),
        (ChatBody, CHAT | {"stream_options": {"include_usag": True}}, "did you mean include_usage"),
        (TextBody, {"messages": SAID}, "messages: unknown field; did you mean prompt?"),
        (ResponsesBody, {"input": "x", "max_tokens": 5}, "max_tokens: unknown field; did you mean max_output_tokens?"),
        (MessagesBody, MESSAGES | {"stop": ["x"]}, "stop: unknown field; did you mean stop_sequences?"),
        (
            MessagesBody,
            MESSAGES | {"thinking": {"type": "enabld"}},
            "thinking.type: must be one of ",
        ),
    ],
)
def test_a_slip(schema: Any, body: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode(json.dumps(body).encode(), schema)
    assert words in str(caught.value)


def test_what_is_like_nothing_is_only_named() -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode(json.dumps(CHAT | {"xyz": 1}).encode(), ChatBody)
    assert str(caught.value) == "xyz: unknown field"
